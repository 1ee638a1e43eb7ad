"""The evaluations of each epoch: weights and averages, every image once, and the official padded way.

The official code reports the plain mean of its batches' means, the short last batch counting fully; this project reports the
mean over the images. Both are compared: the returned loss with the recorded batches weighted by their sizes, and the official
number with one that is computed from the same images' losses.
"""

from statistics import mean

import pytest

from tests.golden.bounds import BOUNDS
from tests.golden.runs import Case, Run

KINDS = ["eval", "eval_dist_eval", "eval_ema0.99996", "eval_ema0.9"]
BATCH = 48


def losses_by_replica(runs: list[Run], epoch: int, kind: str) -> list[list[float]]:
    """Of each replica, the losses of its images. Ranks of one replica must agree bit for bit."""
    found: dict[int, list[float]] = {}
    for run in runs:
        losses = run.epochs[epoch].evaluations[kind].losses
        assert found.setdefault(run.replica, losses) == losses
    return [found[replica] for replica in sorted(found)]


def official_loss(shares: list[list[float]], kind: str) -> float:
    """The official number: padded replicas have batches of their own, without padding every rank scores the whole set."""
    if kind != "eval_dist_eval":
        together = [0.0] * sum(len(share) for share in shares)
        for replica, share in enumerate(shares):
            together[replica :: len(shares)] = share
        shares = [together]
    return mean(mean(share[start : start + BATCH]) for share in shares for start in range(0, len(share), BATCH))


def mean_over_images(recorded: dict, kind: str) -> float:
    """From the recorded mean of each batch and its size."""
    ranks = recorded["batch_loss_per_rank"]
    ranks = ranks if kind == "eval_dist_eval" else ranks[:1]  # without padding, all official ranks score the same images
    share = recorded["n"] // len(ranks)
    sizes = [min(BATCH, share - BATCH * index) for index in range(len(ranks[0]))]
    return sum(size * loss for rank in ranks for size, loss in zip(sizes, rank, strict=True)) / recorded["n"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_evaluation_counts_the_official_hits(case, runs, kind, worst):
    for run in runs:
        for epoch, recorded in zip(run.epochs, case.recorded["epochs"], strict=False):
            stats, expected = epoch.evaluations[kind].stats, recorded[kind]
            assert stats["images"] == expected["n"]
            for best in (1, 5):
                hits = stats[f"acc{best}"] * expected["n"] / 100
                assert abs(hits - round(hits)) < 1e-9
                difference = abs(round(hits) - expected[f"correct{best}"])
                worst.check(case.mesh.name, case.dtype, "hits of an evaluation", difference, BOUNDS[case.dtype].hits)


@pytest.mark.parametrize("kind", KINDS)
def test_every_evaluation_has_the_official_loss(case: Case, runs, kind, worst):
    bounds = BOUNDS[case.dtype]
    for index in range(case.num_epochs):
        recorded = case.recorded["epochs"][index][kind]
        official = official_loss(losses_by_replica(runs, index, kind), kind)
        bound = bounds.loss if index else bounds.first_epoch_loss
        worst.check(case.mesh.name, case.dtype, "loss of an evaluation", abs(official - recorded["loss"]), bound)


@pytest.mark.parametrize("kind", ["eval", "eval_dist_eval"])
def test_the_returned_loss_is_the_official_batches_weighted_by_their_images(case, runs, kind, worst):
    bounds = BOUNDS[case.dtype]
    for run in runs:
        for epoch, recorded in zip(run.epochs, case.recorded["epochs"], strict=False):
            difference = abs(epoch.evaluations[kind].stats["loss"] - mean_over_images(recorded[kind], kind))
            bound = bounds.loss if epoch.epoch else bounds.first_epoch_loss
            worst.check(case.mesh.name, case.dtype, "loss of an evaluation, returned", difference, bound)
