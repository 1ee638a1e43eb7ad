import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import branches, build_tp_parallelize_plan
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.plan import matches
from tinyexp.parallel.styles import ColwiseShard, ParallelBranches, RowwiseShard


def on_meta(shape: ViTShape) -> nn.Module:
    with torch.device("meta"):
        return build_vit(shape)


@pytest.mark.parametrize("activations", ["sharded", "replicated"])
def test_the_vit_plan_fits_deit_small_on_two_and_three_ranks(activations):
    model = on_meta(PRESETS["deit_small_patch16_224"])
    for tp_size in (1, 2, 3, 6):
        assert plan_problems(model, build_tp_parallelize_plan(model, activations=activations), tp_size) == []


def test_heads_need_not_divide():
    model = on_meta(PRESETS["deit_tiny_patch16_224"])
    assert plan_problems(model, build_tp_parallelize_plan(model), 2) == []


def test_all_problems_of_a_plan_are_reported_at_once():
    model = on_meta(ViTShape(16, 96, 1, 6))
    plan: dict[str, ParallelStyle] = build_tp_parallelize_plan(model)
    plan["blocks.*.attn.qvk"] = plan.pop("blocks.*.attn.q")
    del plan["blocks.*.mlp.fc2"]
    plan["blocks.*.norm1"] = ColwiseShard()
    plan["blocks.*.mlp.fc1"] = ColwiseShard(unit=36)
    plan["norm"] = ParallelBranches("sharded", branches=branches)
    problems = "\n".join(plan_problems(model, plan, 4))
    for part in (
        "plan path blocks.*.attn.qvk matches no module; nearest: blocks.*.attn.",
        "blocks.*.mlp.fc1: 384 features are not whole units of 36",
        "norm: ParallelBranches needs an nn.Sequential of blocks, a LayerNorm is none",
        "blocks.*.mlp: a ColwiseShard without a RowwiseShard",
        "blocks.*.norm1: a LayerNorm cannot be sharded",
    ):
        assert part in problems, problems


def test_a_pair_without_its_exchanges_is_named():
    model = nn.Sequential()
    model.mlp = nn.Sequential()
    model.mlp.fc1, model.mlp.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)
    columns, rows = {"mlp.fc1": ColwiseShard()}, {"mlp.fc2": RowwiseShard()}
    assert "no ParallelBranches above it" in plan_problems(model, columns | rows, 2)[0]
    assert "its input would not be cut" in plan_problems(model, rows, 2)[0]
    assert "its output would stay cut" in plan_problems(model, columns, 2)[0]
    alone = {"mlp": ParallelBranches("sharded", branches=branches)}
    assert "each rank would add the whole" in plan_problems(model, alone, 2)[0]


def test_a_star_stands_for_one_level_only():
    model = on_meta(ViTShape(16, 96, 2, 6))
    assert list(matches(model, "blocks.*.attn")) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(matches(model, "blocks.*")) == ["blocks.0", "blocks.1"]
    assert matches(model, "*.attn") == {}
