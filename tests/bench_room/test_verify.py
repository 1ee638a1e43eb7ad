"""`mode=verify` is green for a right mesh and red for every known way to get it wrong."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tests.helpers.sabotage import cut_qkv_contiguously, enter_each_of_q_k_v, enter_none
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.bench.verify import Row, VerifyCfg, compare, show_rows
from tinyexp.errors import NotEqual
from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.training.state import TrainState


def demo(settings: dict[str, object]) -> DigitsDemo:
    experiment = DigitsDemo()
    experiment.module_cfg.drop_path_rate = 0.2
    experiment.accelerator_cfg = replace(experiment.accelerator_cfg, **settings)
    return experiment


def verified(settings: dict[str, object], sabotage: Callable[[Accelerator], None] | None = None) -> list[Row]:
    accelerator = build_accelerator(**settings)
    if sabotage:
        sabotage(accelerator)
    return compare(accelerator, demo(settings).subject(), VerifyCfg())


def verified_with_an_early_optimizer(settings: dict[str, object]) -> list[Row]:
    """The guard against an optimizer that is built before sharding, left out."""
    accelerator, experiment = build_accelerator(**settings), demo(settings)

    def build_state(accelerator: Accelerator) -> TrainState:
        state = experiment.build_state(accelerator)
        if not isinstance(accelerator, CPUAccelerator):
            unsharded = experiment.module_cfg.build()
            state.optimizer = experiment.optimizer_cfg.build(unsharded, global_batch=512)
            state.optimizer.add_param_group({"params": accelerator.parameters.of_kind(sharded=False)})
        return state

    return compare(accelerator, replace(experiment.subject(), build_state=build_state), VerifyCfg())


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize(
    "settings",
    [
        {"activations": "sharded"},
        {"activations": "replicated"},
        {"accelerator": "ddp"},
        {"activations": "sharded", "overlap_chunks": 2},
        {"activations": "replicated", "overlap_chunks": 2},
    ],
    ids=str,
)
def test_two_ranks_are_equal_in_every_quantity_with_mixing_and_drop_path_on(settings, precision):
    first, second = run_on_ranks(verified, 2, settings | {"precision": precision})
    assert first == second
    assert len(first) == 9
    assert all(row.holds for row in first), first


def broken(rows: list[Row]) -> set[str]:
    return {row.quantity for row in rows if not row.holds}


def test_a_contiguous_cut_of_qkv_is_red():
    rows = run_on_ranks(verified, 2, {"precision": "fp32"}, cut_qkv_contiguously)[0]
    assert {"loss of a step", "gradient norm, relative", "weight after the steps"} <= broken(rows)


def test_a_collective_too_many_is_red_though_the_numbers_agree():
    rows = run_on_ranks(verified, 2, {"precision": "fp64", "activations": "replicated"}, enter_each_of_q_k_v)[0]
    assert broken(rows) == {"collectives too many or too few", "bytes sent too many or too few"}


def test_a_collective_too_few_is_red():
    rows = run_on_ranks(verified, 2, {"precision": "fp64", "activations": "replicated"}, enter_none)[0]
    assert {"collectives too many or too few", "gradient norm, relative", "weight after the steps"} <= broken(rows)


def test_an_optimizer_built_before_sharding_is_red():
    rows = run_on_ranks(verified_with_an_early_optimizer, 2, {"precision": "fp32"})[0]
    assert {"weight after the steps", "tensors that never moved"} <= broken(rows)


def test_the_table_names_what_is_broken_and_where(capsys):
    good = Row("fp64", "loss of a step", 1e-12, "step 0", 1e-9)
    show_rows([good])
    assert "equal" in capsys.readouterr().out
    with pytest.raises(NotEqual, match=r"weight after the steps \(fp32\): 2\.0e-03 at blocks\.0\.attn\.q\.weight"):
        show_rows([good, Row("fp32", "weight after the steps", 2e-3, "blocks.0.attn.q.weight", 1e-5)])
    assert not Row("fp32", "loss of a step", math.nan, "step 1", 1e-5).holds


def test_impossible_values_are_named():
    assert VerifyCfg().problems() == []
    assert "verify_cfg.steps=0" in VerifyCfg(steps=0).problems()[0]
