import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.plan import matches
from tinyexp.parallel.styles import ColwiseShard, EnterShards, RowwiseShard


def on_meta(shape: ViTShape) -> nn.Module:
    with torch.device("meta"):
        return build_vit(shape)


@pytest.mark.parametrize("activations", ["sharded", "replicated"])
def test_the_vit_plan_fits_deit_small_on_two_and_three_ranks(activations):
    model = on_meta(PRESETS["deit_small_patch16_224"])
    for tp_size in (1, 2, 3, 6):
        assert plan_problems(model, build_tp_parallelize_plan(activations), tp_size) == []


def test_heads_that_do_not_divide_are_named_once_with_the_sizes_that_work():
    problems = plan_problems(on_meta(PRESETS["deit_tiny_patch16_224"]), build_tp_parallelize_plan(), 2)
    assert problems == ["blocks.*.attn: num_heads=3 is not divisible by accelerator_cfg.tp_size=2; sizes that work: 1, 3"]


def test_all_problems_of_a_plan_are_reported_at_once():
    plan: dict[str, ParallelStyle] = build_tp_parallelize_plan()
    plan["blocks.*.attn.qvk"] = plan.pop("blocks.*.attn.q")
    del plan["blocks.*.mlp.fc2"]
    plan["blocks.*.norm1"] = ColwiseShard()
    problems = "\n".join(plan_problems(on_meta(ViTShape(16, 96, 1, 6)), plan, 4))
    for part in (
        "plan path blocks.*.attn.qvk matches no module; nearest: blocks.*.attn.",
        "blocks.*.attn: num_heads=6 is not divisible by accelerator_cfg.tp_size=4; sizes that work: 1, 2, 3, 6",
        "blocks.*.mlp: a ColwiseShard without a RowwiseShard",
        "blocks.*.norm1: a LayerNorm cannot be sharded",
    ):
        assert part in problems, problems


def test_a_pair_without_its_collective_is_named():
    model = nn.Sequential()
    model.mlp = nn.Sequential()
    model.mlp.fc1, model.mlp.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)
    columns, rows = {"mlp.fc1": ColwiseShard()}, {"mlp.fc2": RowwiseShard("sharded")}
    assert "its input gradient would not be summed" in plan_problems(model, columns | rows, 2)[0]
    assert "its input would not be cut" in plan_problems(model, rows, 2)[0]
    assert "EnterShards without a ColwiseShard below it" in plan_problems(model, {"mlp": EnterShards("sharded")}, 2)[0]


def test_features_that_do_not_divide_are_named():
    model = nn.Sequential()
    model.mlp = nn.Sequential()
    model.mlp.fc1, model.mlp.fc2 = nn.Linear(4, 9), nn.Linear(9, 4)
    plan = {"mlp": EnterShards("sharded"), "mlp.fc1": ColwiseShard(), "mlp.fc2": RowwiseShard("sharded")}
    problems = plan_problems(model, plan, 2)
    assert "mlp.fc1: out_features=9 is not divisible by accelerator_cfg.tp_size=2; sizes that work: 1, 3, 9" in problems
    assert any("mlp.fc2: in_features=9" in problem for problem in problems)


def test_a_star_stands_for_one_level_only():
    model = on_meta(ViTShape(16, 96, 2, 6))
    assert list(matches(model, "blocks.*.attn")) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(matches(model, "blocks.*")) == ["blocks.0", "blocks.1"]
    assert matches(model, "*.attn") == {}
