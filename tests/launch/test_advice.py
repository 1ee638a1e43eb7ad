import pytest
import torch
import torch.distributed as dist
from torch import nn

from tinyexp.launch.advice import advice
from tinyexp.launch.worker import run_as_rank


def message_of_rank(function) -> str:
    failure = run_as_rank(function, rank=1).failure
    assert failure
    return failure.line(1, 2)


def test_shapes_that_do_not_fit_after_sharding_come_with_what_to_do():
    message = message_of_rank(lambda: nn.Linear(8, 8)(torch.ones(2, 4)))
    what, do = message.splitlines()
    assert what == "rank 1 of 2: RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 8x8)"
    assert "shard in pairs, column-wise then row-wise, over ranks whose number divides the features" in do


def test_a_collective_before_the_ranks_have_met_comes_with_what_to_do():
    message = message_of_rank(lambda: dist.all_reduce(torch.ones(1)))
    assert "ValueError: Default process group has not been initialized" in message
    assert "AcceleratorCfg.build joins the process group" in message


@pytest.mark.parametrize(
    ("text", "do"),
    [  # no GPU here raises them: the texts of torch 2.14.1
        ("Expected all tensors to be on the same device, but got mat1 is on cpu, different from cuda:0", "batch.to(accelerator"),
        ("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!", "set_device first"),
        (
            "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
            "accelerator.prepare(model)",
        ),
        ("No backend type associated with device type cpu", "gloo exchanges tensors of CPUs and nccl those of GPUs"),
    ],
)
def test_tensors_on_the_wrong_device_come_with_what_to_do(text, do):
    assert do in advice(RuntimeError(text))


def test_other_errors_stay_as_they_are():
    assert advice(RuntimeError("out of memory")) == ""
    assert advice(KeyError("shapes cannot be multiplied")) == ""
    assert message_of_rank(lambda: int("x")) == "rank 1 of 2: ValueError: invalid literal for int() with base 10: 'x'"
