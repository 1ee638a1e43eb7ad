"""Heads that tp does not divide are filled up with zeros, which changes nothing."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.presets import ViTShape
from tinyexp.parallel.cut import padded_size
from tinyexp.training.optimizer import OptimizerCfg

STEPS = 20


def trained(accelerator: Accelerator, num_heads: int) -> tuple[dict[str, torch.Tensor], bool, float]:
    """Whole weights after 20 AdamW steps with decay; whether padding stayed zero, bit for bit; the first loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build_vit(ViTShape(patch_size=8, embed_dim=8 * num_heads, depth=2, num_heads=num_heads), img_size=32, num_classes=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    accelerator.prepare(model)
    optimizer = OptimizerCfg(lr=1e-3, weight_decay=0.5).build(model, global_batch=512)
    parameters, zero, generator, first = accelerator.parameters, True, torch.Generator().manual_seed(1), 0.0
    replica = accelerator.replica
    for step in range(STEPS):
        images = torch.randn(4, 3, 32, 32, generator=generator, dtype=torch.float64)
        classes = torch.randint(4, (4,), generator=generator)
        mine = slice(replica.rank * 4 // replica.size, (replica.rank + 1) * 4 // replica.size)
        loss = F.cross_entropy(accelerator.training_model(images[mine]), classes[mine])
        first = loss.item() if step == 0 else first
        accelerator.step(loss, optimizer)
        for name, cut in parameters.cuts.items():
            part = parameters.by_name[name]
            zero &= torch.equal(cut.part(cut.gather(part)), part.detach())
    return accelerator.whole_weights(), zero, first


def on_mesh(settings: dict[str, object], num_heads: int) -> tuple[dict[str, torch.Tensor], bool, float]:
    return trained(build_accelerator(precision="fp64", **settings), num_heads)


@pytest.mark.parametrize("activations", ["sharded", "replicated"])
@pytest.mark.parametrize(("num_heads", "tp"), [(3, 2), (6, 4), (1, 2)])
def test_padded_heads_equal_one_process_over_20_decayed_steps_and_stay_zero(num_heads, tp, activations):
    expected, _, _ = trained(CPUAccelerator(precision="fp64"), num_heads)
    for weights, zero, _ in run_on_ranks(on_mesh, tp, {"activations": activations}, num_heads):
        assert zero
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            assert weights[name].shape == value.shape
            assert (weights[name] - value).abs().max() < 1e-9, name


@pytest.mark.parametrize(
    ("size", "unit", "parts", "padded"),
    [(384, 64, 2, 384), (192, 64, 2, 256), (384, 64, 4, 512), (5, 1, 2, 6)],
)
def test_whole_units_are_filled_up(size, unit, parts, padded):
    assert padded_size(size, unit, parts) == padded
