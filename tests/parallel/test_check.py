import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import branches, build_tp_parallelize_plan
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.check import device_problems, plan_problems
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


def pair(hidden_size: int) -> nn.Module:
    model = nn.Sequential()
    model.fc1, model.fc2 = nn.Linear(8, hidden_size), nn.Linear(hidden_size, 8)
    return model


def test_a_plan_of_torchs_own_styles_that_fits_has_no_problem():
    assert plan_problems(pair(12), {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}, 4) == []
    alone = {"fc1": ColwiseParallel(output_layouts=Replicate())}
    assert plan_problems(pair(12), alone, 2) == []
    assert plan_problems(pair(12), {"fc2": RowwiseParallel(input_layouts=Replicate())}, 2) == []


def test_sizes_that_torchs_styles_cannot_cut_are_named_with_those_that_fit():
    assert plan_problems(pair(9), {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}, 2) == [
        "fc1: 9 output features are not equal parts on 2 ranks; use 3, 9 ranks, or 10 features",
        "fc2: 9 input features are not equal parts on 2 ranks; use 3, 9 ranks, or 10 features",
    ]


def test_a_style_of_torch_without_its_partner_is_named():
    assert plan_problems(pair(8), {"fc1": ColwiseParallel()}, 2) == [
        "fc1: a ColwiseParallel without a RowwiseParallel beside it; its output would stay cut. "
        "Add the partner, or ColwiseParallel(output_layouts=Replicate())"
    ]
    assert plan_problems(pair(8), {"fc2": RowwiseParallel()}, 2) == [
        "fc2: a RowwiseParallel without a ColwiseParallel beside it; its input would not be cut. "
        "Add the partner, or RowwiseParallel(input_layouts=Replicate())"
    ]


def test_a_misspelt_path_is_named_with_the_nearest():
    problems = plan_problems(pair(8), {"fc_1": ColwiseParallel(), "fc2": RowwiseParallel()}, 2)
    assert problems == ["plan path fc_1 matches no module; nearest: fc1"]


def test_what_torchs_styles_cannot_shard_is_named():
    plan: dict[str, ParallelStyle] = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    assert plan_problems(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), plan, 2) == [
        "0: a LayerNorm cannot be sharded; nn.Linear and nn.Embedding can"
    ]


def test_a_model_that_was_not_moved_to_the_device_of_the_mesh_is_named():
    assert device_problems(pair(8), "cuda") == [
        'fc1.weight and 3 more on cpu, the mesh is of cuda devices; call model.to("cuda") before sharding'
    ]
    assert device_problems(pair(8), "cpu") == []
    assert device_problems(pair(8).to("meta"), "cuda") == []
