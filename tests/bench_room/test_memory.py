"""Activation bytes are what a forward leaves alive for backward."""

import torch
from torch.utils.checkpoint import checkpoint

from tinyexp.bench.memory import activation_bytes

ROW = 16 * 32 * 4  # bytes of (16, 32) in float32


def test_each_storage_counts_once_and_parameters_and_inputs_do_not():
    linear, images = torch.nn.Linear(32, 32), torch.randn(16, 32)

    def forward() -> torch.Tensor:
        hidden = linear(images)  # not kept by relu, whose backward reads its output
        active = hidden.relu()
        return (active.view(32, 16) * active.view(32, 16)).sum()  # two views of one storage

    assert activation_bytes(forward) == ROW


def test_what_a_checkpoint_keeps_is_counted():
    images = torch.randn(16, 32, requires_grad=True)

    def kept() -> torch.Tensor:
        return checkpoint(lambda tokens: tokens.exp().sin().sum(), images * 2, use_reentrant=False)

    def stored() -> torch.Tensor:
        return (images * 2).exp().sin().sum()

    assert activation_bytes(kept) == ROW
    assert activation_bytes(stored) == ROW  # of exp alone: sin keeps its input, which exp keeps too
