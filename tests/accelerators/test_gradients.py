"""Gradients leave in buckets while backward runs, and arrive as the mean over the replicas."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators import gradients
from tinyexp.accelerators.gradients import GradientAverager


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))


def averaged_and_sent() -> tuple[list[torch.Tensor], list[int]]:
    """Gradients of two backwards with a bucket a layer; how many buckets had left when each layer's gradient was made."""
    gradients.BUCKET_BYTES = 8 * 8 * 4 + 8 * 4
    build_accelerator()
    model = layers()
    averager = GradientAverager([(parameter, dist.group.WORLD) for parameter in model.parameters()], replicas=2)
    sent: list[int] = []
    for layer in model:
        layer.register_full_backward_pre_hook(lambda *_: sent.append(sum(bucket.work is not None for bucket in averager.buckets)))
    found: list[torch.Tensor] = []
    for step in range(2):
        model.zero_grad()
        model(torch.full((2, 8), float(dist.get_rank() + step))).square().sum().backward()
        averager.finish()
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return found, sent


def test_buckets_leave_during_backward_and_hold_the_mean():
    first, second = run_on_ranks(averaged_and_sent, 2)
    assert first[1] == [0, 1, 2, 3] * 2
    expected: list[torch.Tensor] = []
    for step in range(2):
        model = layers()
        sum(model(torch.full((2, 8), float(rank + step))).square().sum() / 2 for rank in range(2)).backward()  # pyright: ignore
        expected += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for found in (first[0], second[0]):
        for own, value in zip(found, expected, strict=True):
            torch.testing.assert_close(own, value)


def test_without_a_group_gradients_are_divided_where_they_are():
    model = layers()
    averager = GradientAverager([(parameter, None) for parameter in model.parameters()], replicas=4)
    model(torch.ones(2, 8)).sum().backward()
    averager.finish()
    whole = layers()
    whole(torch.ones(2, 8)).sum().backward()
    for own, other in zip(model.parameters(), whole.parameters(), strict=True):
        assert own.grad is not None and other.grad is not None
        assert torch.equal(own.grad, other.grad / 4)


def test_a_parameter_without_a_gradient_is_noticed():
    model = layers()
    averager = GradientAverager([(parameter, None) for parameter in model.parameters()], replicas=2)
    model[2](torch.ones(2, 8)).sum().backward()
    with pytest.raises(AssertionError, match="took no part in the loss"):
        averager.finish()
