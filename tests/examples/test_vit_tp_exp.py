"""L1: training on two ranks is training on one process. And the same comparison goes red for the known ways to get it wrong."""

import math

import pytest
import torch

from tests.helpers.equality import (
    MODELS,
    assert_equal_in_float32,
    assert_equal_in_float64,
    build_noisy,
    differences_from_one_process,
)
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tests.helpers.sabotage import cut_qkv_contiguously, enter_each_of_q_k_v, enter_none
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.parallel.apply import Parameters, assert_owns, shard
from tinyexp.training.optimizer import OptimizerCfg

LAYOUTS = ["sharded", "replicated"]
COLLECTIVES_OF_A_BLOCK = {
    "sharded": {"send": 8},  # four pairs of a gather and a reduce-scatter, which gloo's two ranks make with one send each
    "replicated": {"all-reduce": 4},
}


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_tp_2_equals_one_process_in_float32(name, activations):
    for found in run_on_ranks(differences_from_one_process, 2, name, {"activations": activations}):
        assert_equal_in_float32(found)


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_tp_2_equals_one_process_in_float64(name, activations):
    for found in run_on_ranks(differences_from_one_process, 2, name, {"activations": activations}, torch.float64):
        assert_equal_in_float64(found)


@pytest.mark.parametrize(
    "settings",
    [{"accelerator": "ddp"}, {"tp_size": 1}],
    ids=["ddp", "tp_size_1"],
)
def test_data_parallel_meshes_equal_one_process(settings):
    for found in run_on_ranks(differences_from_one_process, 2, "deit_small_2_blocks", settings, torch.float64):
        assert_equal_in_float64(found)


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("tp_size", [1, 2, 4])  # 4: six heads filled up to eight
def test_every_mesh_of_four_equals_one_process(activations, tp_size):
    settings = {"activations": activations, "tp_size": tp_size}
    for found in run_on_ranks(differences_from_one_process, 4, "deit_digits_patch8_32", settings, torch.float64):
        assert_equal_in_float64(found)


def test_tp_3_equals_one_process():  # case A05
    for found in run_on_ranks(differences_from_one_process, 3, "deit_small_2_blocks", {"activations": "replicated"}):
        assert_equal_in_float32(found)


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("clip_grad", [None, 1.0, 1e6])
def test_clipping_equals_one_process_and_reports_the_whole_norm(clip_grad, activations):  # case A06
    arguments = ("deit_small_2_blocks", {"activations": activations}, torch.float32, clip_grad)
    first, second = run_on_ranks(differences_from_one_process, 2, *arguments)
    assert_equal_in_float32(first)
    assert first.gradient_norm == second.gradient_norm


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_makes_exactly_four_collectives_a_block(name, activations):
    depth = MODELS[name][0].depth
    for found in run_on_ranks(differences_from_one_process, 2, name, {"activations": activations}):
        expected = {kind: count * depth for kind, count in COLLECTIVES_OF_A_BLOCK[activations].items()}
        gradients = {"all-reduce": 1} if activations == "sharded" else {}  # the replicated parameters, in one bucket
        assert found.collectives == expected | gradients


# --- sabotage: what must go red


def test_a_contiguous_cut_of_qkv_is_noticed():
    arguments = ("deit_small_2_blocks", {}, torch.float32, None, cut_qkv_contiguously)
    for found in run_on_ranks(differences_from_one_process, 2, *arguments):
        with pytest.raises(AssertionError):
            assert_equal_in_float32(found)
        assert found.logits > 0.1


def test_three_collectives_for_q_k_v_are_counted():
    arguments = ("deit_small_2_blocks", {"activations": "replicated"}, torch.float32, None, enter_each_of_q_k_v)
    for found in run_on_ranks(differences_from_one_process, 2, *arguments):
        assert found.collectives == {"all-reduce": 6 * 2}
        assert_equal_in_float32(found)  # right, and half as fast again on the wire: only the count tells


def test_missing_collectives_are_counted_and_noticed():
    arguments = ("deit_small_2_blocks", {"activations": "replicated"}, torch.float32, None, enter_none)
    for found in run_on_ranks(differences_from_one_process, 2, *arguments):
        assert found.collectives == {"all-reduce": 2 * 2}
        with pytest.raises(AssertionError):
            assert_equal_in_float32(found)
        assert found.gradients > 1e-3


def optimizer_built_before_sharding() -> tuple[str, float, float]:
    """The guard's message, and how far the column weights and the others move when the guard is left out."""
    accelerator = build_accelerator()
    model = build_noisy("deit_digits_patch8_32")
    optimizer = OptimizerCfg(lr=1e-3).build(model, global_batch=512)
    assert accelerator.mesh.device_mesh is not None
    shard(model, accelerator.mesh.device_mesh["tp"], build_tp_parallelize_plan(model))
    message = ""
    try:
        assert_owns(optimizer, model)
    except AssertionError as error:
        message = str(error)
    before = {name: value.detach().clone() for name, value in Parameters(model).by_name.items()}
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    moved = {name: (value - before[name]).abs().max().item() for name, value in Parameters(model).by_name.items()}
    return message, max(moved["blocks.0.attn.q.weight"], moved["blocks.3.mlp.fc2.weight"]), moved["head.weight"]


def test_an_optimizer_built_before_sharding_moves_no_shard_and_is_refused():
    for message, shards_moved, head_moved in run_on_ranks(optimizer_built_before_sharding, 2):
        assert "does not own 40 parameters" in message
        assert "built before the model was sharded" in message
        assert shards_moved == 0.0
        assert head_moved > 0.0
        assert math.isfinite(head_moved)
