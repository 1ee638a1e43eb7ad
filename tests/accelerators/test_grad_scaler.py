import pytest
import torch
import torch.nn.functional as F

from tests.helpers.equality import batches, build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.grad_scaler import build_grad_scaler
from tinyexp.training.optimizer import OptimizerCfg

NAME = "deit_digits_patch8_32"


def step_with_an_overflow_on_rank_1(parameter: str) -> tuple[bool, float, bool]:
    """Whether the overflowing step moved any weight, the scale afterwards, and whether the next step moved all shards."""
    accelerator = build_accelerator(precision="fp16")
    model = build_noisy(NAME)
    accelerator.prepare(model)
    optimizer = OptimizerCfg(lr=1e-2).build(model, global_batch=512)
    by_name = accelerator.parameters.by_name
    images, classes = batches(NAME)[0]
    reduce_gradients = accelerator.reduce_gradients

    def overflow() -> None:
        reduce_gradients()
        if accelerator.world.rank == 1:
            gradient = by_name[parameter].grad
            assert gradient is not None
            gradient.view(-1)[0] = float("inf")

    def loss() -> torch.Tensor:
        with accelerator.autocast():
            return F.cross_entropy(accelerator.training_model(images), classes)

    before = {name: value.detach().clone() for name, value in by_name.items()}
    accelerator.reduce_gradients = overflow
    accelerator.step(loss(), optimizer)
    moved = any(not torch.equal(value, before[name]) for name, value in by_name.items())
    scale = accelerator.scaler.get_scale()
    accelerator.reduce_gradients = reduce_gradients
    accelerator.step(loss(), optimizer)
    return moved, scale, not torch.equal(by_name["blocks.0.attn.q.weight"], before["blocks.0.attn.q.weight"])


@pytest.mark.parametrize("parameter", ["blocks.0.attn.q.weight", "head.weight"], ids=["sharded", "replicated"])
def test_an_overflow_on_one_rank_skips_the_step_of_every_parameter_on_every_rank(parameter):
    for moved, scale, moved_next in run_on_ranks(step_with_an_overflow_on_rank_1, 2, parameter):
        assert not moved
        assert scale == 2.0**15
        assert moved_next


def test_the_scaler_is_off_unless_fp16_is_on():
    assert not build_grad_scaler(torch.device("cpu"), fp16=False).is_enabled()
    assert build_grad_scaler(torch.device("cpu"), fp16=True).is_enabled()
