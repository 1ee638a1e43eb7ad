"""The shipped experiment, step by step and epoch by epoch, beside the official code on as many processes as it has replicas."""

from collections.abc import Iterator

import pytest

from tests.golden.bounds import BOUNDS, absolute, of_norms, of_sums, relative
from tests.golden.recorder import Epoch
from tests.golden.runs import Case, Run


def epochs_of(case: Case, runs: list[Run]) -> Iterator[tuple[Epoch, dict, dict]]:
    """Of every rank: each epoch, the recorded one, and what is recorded of this rank's replica in it."""
    for run in runs:
        assert len(run.epochs) == case.num_epochs
        for epoch, recorded in zip(run.epochs, case.recorded["epochs"], strict=False):
            assert epoch.epoch == recorded["epoch"]
            yield epoch, recorded, recorded["ranks"][run.replica]


def in_order(parts: list[list[int]], rows: int) -> list[int]:
    """The images of a replica whose batches were read by several ranks, each of which took some rows of every one."""
    return [index for first in range(0, len(parts[0]), rows) for part in parts for index in part[first : first + rows]]


def test_every_replica_reads_the_official_images_in_the_official_order(case, runs):
    assert {run.replica for run in runs} == set(range(case.mesh.replicas))
    readers = len(runs) // case.mesh.replicas
    rows = int(case.recorded["cmdline"][case.recorded["cmdline"].index("--batch-size") + 1]) // readers
    for number, recorded in enumerate(case.recorded["epochs"][: case.num_epochs]):
        for replica in range(case.mesh.replicas):
            parts = [run.epochs[number].indices for run in runs if run.replica == replica]
            assert in_order(parts, rows) == case.table("indices", recorded["ranks"][replica]["indices"])


def test_mixing_draws_the_official_shares_and_boxes(case, runs):
    for epoch, _, replica in epochs_of(case, runs):
        assert epoch.mix == case.table("mix", replica["mix"])


def test_drop_path_keeps_the_official_images(case, runs):
    for epoch, _, replica in epochs_of(case, runs):
        assert epoch.drop_path == [kept for step in case.table("drop_path", replica["drop_path"]) for kept in step]


def test_the_three_generators_stand_where_the_official_ones_do(case, runs):
    for epoch, _, replica in epochs_of(case, runs):
        assert epoch.random_state == {moment: replica[f"rng_{moment}"] for moment in epoch.random_state}
        assert len(epoch.random_state) == 3


def test_every_step_takes_the_official_learning_rate(case, runs, worst):
    for epoch, recorded, _ in epochs_of(case, runs):
        num_steps = case.recorded["steps_per_epoch"]
        assert len(epoch.lr) == 2 * num_steps
        worst.check(case.mesh.name, case.dtype, "lr, relative", relative(epoch.lr, [recorded["lr"]] * 2 * num_steps), 1e-15)


def test_every_step_on_every_rank_has_the_official_loss(case, runs, worst):
    bounds = BOUNDS[case.dtype]
    for epoch, _, replica in epochs_of(case, runs):
        difference = absolute(epoch.loss, replica["loss"])
        worst.check(case.mesh.name, case.dtype, "loss of a step", difference, bounds.loss)
        if epoch.epoch == 0:
            worst.check(case.mesh.name, case.dtype, "loss of a step, first epoch", difference, bounds.first_epoch_loss)


def test_every_step_has_the_official_gradient_norm_before_and_after_clipping(case, runs, worst):
    bound = BOUNDS[case.dtype].gradient_norm
    for epoch, recorded, _ in epochs_of(case, runs):
        before, after = recorded.get("grad_norm_pre_clip", []), recorded["grad_norm_at_step"]
        difference = relative(epoch.grad_norm_at_step, after)
        worst.check(case.mesh.name, case.dtype, "gradient norm, relative", difference, bound)
        difference = relative(epoch.grad_norm_pre_clip, before)
        worst.check(case.mesh.name, case.dtype, "gradient norm before clip, relative", difference, bound)


def test_the_means_of_an_epoch_are_the_official_ones(case, runs, worst):
    for epoch, recorded, _ in epochs_of(case, runs):
        returned = recorded["train_stats_returned"]
        assert epoch.train_stats["lr"] == pytest.approx(returned["lr"], rel=1e-14)
        difference = abs(epoch.train_stats["loss"] - returned["loss"])
        worst.check(case.mesh.name, case.dtype, "mean loss of an epoch", difference, BOUNDS[case.dtype].loss)


def test_weights_and_both_averages_have_the_official_totals_after_every_epoch(case, runs, worst):
    bounds = BOUNDS[case.dtype]
    for epoch, recorded, _ in epochs_of(case, runs):
        assert set(epoch.totals) == {"model", "ema0.99996", "ema0.9"}
        expected = {name: recorded[f"{name}_totals"] for name in epoch.totals}
        worst.check(case.mesh.name, case.dtype, "norm of all weights, relative", of_norms(epoch.totals, expected), bounds.norm)
        worst.check(case.mesh.name, case.dtype, "sums of all weights", of_sums(epoch.totals, expected), bounds.sum)
