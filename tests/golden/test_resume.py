"""The official checkpoint file: read safely, complete, evaluated, and continued as the official code would have."""

from argparse import Namespace

import pytest
import torch

from tests.golden.bounds import BOUNDS, absolute, of_norms, of_sums, relative, reproducible
from tests.golden.record import checksums, load
from tests.golden.resumed import OFFICIAL_FILE, ResumeCase, differing, shape_of
from tinyexp.training.checkpoint_file import read_checkpoint

F32 = BOUNDS["f32"]
ENTRIES = ["model", "model_ema", "optimizer", "lr_scheduler", "epoch", "scaler"]


@pytest.fixture(scope="module")
def official() -> dict:
    return read_checkpoint(OFFICIAL_FILE)


def without_metric(checkpoint: dict) -> dict:
    """Our schedule is told the accuracy, which only `plateau` uses; the official one never is."""
    schedule = {name: value for name, value in checkpoint["lr_scheduler"].items() if name != "metric"}
    return {**checkpoint, "lr_scheduler": schedule}


def test_the_official_file_is_read_as_data_alone(official):
    layout = load("checkpoint_layout")
    assert list(official) == list(layout["top_level"])
    assert isinstance(official["args"], Namespace)
    assert official["epoch"] == layout["epoch"]
    for entry in ("model", "model_ema"):
        assert checksums(official[entry]) == {
            name: pytest.approx(value, rel=1e-12) for name, (_, _, value) in layout[entry].items()
        }


def test_our_checkpoint_of_the_same_run_has_the_official_layout(resume_case: ResumeCase, found_by, official):
    for resumed in found_by(resume_case):
        own = resumed.own_checkpoint
        assert own.keys() - official.keys() == {"tinyexp"}
        assert not official.keys() - own.keys()
        for entry in ENTRIES:
            assert shape_of(without_metric(own)[entry]) == shape_of(without_metric(official)[entry]), entry
        assert list(own["model"]) == list(official["model"])
        assert [list(group) for group in own["optimizer"]["param_groups"]] == [
            list(group) for group in official["optimizer"]["param_groups"]
        ]


def test_the_official_file_loaded_and_saved_again_is_the_same_bit_for_bit(resume_case: ResumeCase, found_by, official):
    saved_again = found_by(resume_case)[0].saved_again
    for entry in ENTRIES:
        assert differing({entry: saved_again[entry]}, {entry: official[entry]}) == []


def test_the_official_file_scores_as_it_did_where_it_was_written(resume_case: ResumeCase, found_by):
    recorded = resume_case.recorded["part1"]["epochs"][1]["eval"]
    for resumed in found_by(resume_case):
        assert resumed.scores["test_acc1"] == pytest.approx(100 * recorded["correct1"] / recorded["n"], rel=1e-14)
        assert resumed.scores["test_acc5"] == pytest.approx(100 * recorded["correct5"] / recorded["n"], rel=1e-14)
        assert "ema_test_acc1" in resumed.scores


def test_a_run_continued_from_the_official_file_is_the_uninterrupted_official_run(resume_case: ResumeCase, found_by, worst):
    recorded = resume_case.recorded["straight"]["epochs"]
    for resumed in found_by(resume_case):
        epochs = resumed.first_half.epochs + resumed.second_half.epochs
        assert [epoch.epoch for epoch in epochs] == [0, 1, 2, 3]
        for epoch, expected in zip(epochs, recorded, strict=True):
            (replica,) = expected["ranks"]
            assert epoch.random_state == {moment: replica[f"rng_{moment}"] for moment in epoch.random_state}
            assert relative(epoch.lr, [expected["lr"]] * len(epoch.lr)) < 1e-15
            worst.check(resume_case.mesh.name, "f32", "resumed: loss of a step", absolute(epoch.loss, replica["loss"]), F32.loss)


def test_the_continued_run_ends_at_the_official_weights_averages_and_moments(resume_case: ResumeCase, found_by, worst):
    recorded = resume_case.recorded["straight"]
    for resumed in found_by(resume_case):
        run = resumed.second_half
        pairs = [(run.weights["model"], recorded["final_model"]), (run.weights["ema0.9"], recorded["final_ema0.9"])]
        pairs.append((run.bias_parts, recorded["final_qkv_bias_parts"]))
        for moment in ("exp_avg", "exp_avg_sq"):
            found, expected = (
                {name: slot[moment] for name, slot in slots.items()} for slots in (run.optimizer, recorded["final_optimizer"])
            )
            pairs.append((found, expected))
        for found, expected in pairs:
            found, expected = reproducible(found), reproducible(expected)
            worst.check(resume_case.mesh.name, "f32", "resumed: final norms, relative", of_norms(found, expected), F32.norm)
            worst.check(resume_case.mesh.name, "f32", "resumed: final sums", of_sums(found, expected), F32.sum)


def test_a_difference_anywhere_in_a_checkpoint_is_named():
    one = {"model": {"a": torch.zeros(2), "b": torch.zeros(1)}, "epoch": 1}
    other = {"model": {"a": torch.tensor([0.0, 1.0]), "b": torch.zeros(1)}, "epoch": 1}
    assert differing(one, other) == ["model.a"]
    assert differing(one, {**one, "scaler": {}}) == ["only in one: scaler"]
