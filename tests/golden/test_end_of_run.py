"""What a whole run leaves behind, tensor by tensor, read from the checkpoint that the experiment wrote."""

import pytest

from tests.golden.bounds import BOUNDS, KEY_BIAS_BOUND, Bounds, Worst, fused_biases, of_norms, of_rows, of_sums, reproducible
from tests.golden.record import Checksum, load
from tests.golden.runs import Case

Tensors = dict[str, Checksum]


def check(worst: Worst, case: Case, what: str, found: Tensors, recorded: Tensors) -> None:
    """Norms and sums of every tensor. The float32 noise in the key bias is left out; `bias_parts` compare its neighbours."""
    bounds: Bounds = BOUNDS[case.dtype]
    if case.dtype == "f32":
        biases = of_norms(fused_biases(found), fused_biases(recorded))
        worst.check(case.mesh.name, case.dtype, f"{what}: norm of a fused bias", biases, KEY_BIAS_BOUND)
        found, recorded = reproducible(found), reproducible(recorded)
    worst.check(case.mesh.name, case.dtype, f"{what}: norm, relative", of_norms(found, recorded), bounds.norm)
    worst.check(case.mesh.name, case.dtype, f"{what}: sums", of_sums(found, recorded), bounds.sum)


def test_every_weight_is_the_official_one(whole_case, whole_runs, worst):
    for run in whole_runs:
        check(worst, whole_case, "final weights", run.weights["model"], whole_case.recorded["final_model"])
        check(worst, whole_case, "final q and v bias", run.bias_parts, whole_case.recorded["final_qkv_bias_parts"])


@pytest.mark.parametrize("average", ["ema0.99996", "ema0.9"])
def test_every_averaged_weight_is_the_official_one(whole_case, whole_runs, average, worst):
    for run in whole_runs:
        check(worst, whole_case, f"final {average}", run.weights[average], whole_case.recorded[f"final_{average}"])


def test_the_checkpoint_holds_the_average_of_every_rank(whole_case, whole_runs):
    assert all(run.saves_its_average for run in whole_runs)


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_every_moment_of_the_optimizer_is_the_official_one(whole_case, whole_runs, moment, worst):
    recorded = whole_case.recorded["final_optimizer"]
    for run in whole_runs:
        assert {name: slot["step"] for name, slot in run.optimizer.items()} == {
            name: slot["step"] for name, slot in recorded.items()
        }
        found, expected = ({name: slot[moment] for name, slot in slots.items()} for slots in (run.optimizer, recorded))
        check(worst, whole_case, f"final {moment}", found, expected)


def test_logits_are_the_official_ones(whole_case, whole_runs, worst):
    for run in whole_runs:
        for name, recorded in whole_case.recorded["final_logits_val8"].items():
            difference = of_rows(run.logits[name], recorded)
            worst.check(
                whole_case.mesh.name, whole_case.dtype, "final logits, relative", difference, BOUNDS[whole_case.dtype].norm
            )


def test_the_optimizer_has_the_official_groups(whole_case, whole_runs):
    official = load("param_groups")["timm_1.0.31"]["golden_small"]["groups"]
    for run in whole_runs:
        for group, expected in zip(run.groups, official, strict=True):
            hyper = {**expected["hyper"], "lr": group["lr"], "betas": tuple(expected["hyper"]["betas"])}
            assert group["params"] == expected["state_dict_indices"]
            assert group["initial_lr"] == whole_case.recorded["scaled_lr"]
            assert {name: group[name] for name in hyper} == hyper
