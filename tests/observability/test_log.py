import json

import pytest

from tests.helpers.disk import full_beyond
from tinyexp.observability.log import dispensable, replace_file, show_summary, strict_json, write_summary
from tinyexp.observability.plots import draw_curves


def test_numbers_that_are_not_finite_are_null_and_named():
    text = strict_json({"loss": float("nan"), "lr": 1.0, "norm": float("inf")})
    row = json.loads(text, parse_constant=lambda word: 1 / 0)
    assert row == {"loss": None, "lr": 1.0, "norm": None, "nonfinite": ["loss", "norm"]}


def test_a_summary_creates_its_folder(tmp_path):
    path = write_summary(tmp_path / "new", {"top1": 1.5})
    assert json.loads(path.read_text()) == {"top1": 1.5}


def test_a_file_that_cannot_be_replaced_stays_as_it_is_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "status.json"
    replace_file(path, b"old")
    with full_beyond(2), pytest.raises(OSError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_a_file_that_a_run_can_do_without_is_missed_with_a_warning(tmp_path, caplog):
    with full_beyond(2), dispensable(tmp_path / "summary.json"):
        write_summary(tmp_path, {"top1": 1.5})
    assert caplog.messages == [f"{tmp_path}/summary.json could not be written: File too large; the run goes on without it"]
    with pytest.raises(ValueError), dispensable(tmp_path):
        raise ValueError("a mistake of ours")


def test_curves_for_which_there_is_no_room_leave_the_old_ones(tmp_path):
    path = draw_curves([], tmp_path / "curves.png", title="old")
    before = path.read_bytes()
    with full_beyond(1000), pytest.raises(OSError):
        draw_curves([], path, title="new")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["curves.png"]


def test_the_curves_are_drawn_from_rows_with_and_without_averaged_weights(tmp_path):
    rows = [{"epoch": e, "train_loss": 2.0 - e, "test_loss": 1.0, "test_acc1": 50.0, "train_lr": 1e-3} for e in range(3)]
    path = draw_curves(rows, tmp_path / "curves.png", title="a run")
    assert path.read_bytes().startswith(b"\x89PNG")
    rows = [row | {"ema_test_acc1": 40.0, "ema_test_loss": 1.2} for row in rows]
    assert draw_curves(rows, tmp_path / "again.png", title="a run").stat().st_size > path.stat().st_size


def test_a_run_closes_with_a_table_and_one_that_did_nothing_with_none(capsys):
    summary = {"top1": 97.2, "top1_ema": 97.3, "max_accuracy": 97.5, "mesh": {"dp": 1, "tp": 2}, "steps": 10}
    summary |= {"train_seconds": 5.0, "images_per_s": 128.0, "checkpoint": "a.ckpt", "log": "log.txt", "curves": "c.png"}
    show_summary("demo", summary)
    printed = capsys.readouterr().out
    for part in ("97.20 % (best 97.50 %)", "97.30 %", "dp=1 tp=2", "10 steps, 5 s, 128 images/s", "a.ckpt", "c.png"):
        assert part in printed
    watched = {"metrics": "metrics.jsonl", "tensorboard": "a folder/tensorboard", "records_lost": {"MLflow": 1234}}
    show_summary("demo", summary | watched)
    printed = capsys.readouterr().out
    for part in ("metrics.jsonl", "tensorboard --logdir 'a folder/tensorboard'", "records lost", "MLflow: 1,234"):
        assert part in printed
    show_summary("demo", summary | {"first_step": 4})
    assert "10 steps, 5 s, 128 images/s since step 4" in capsys.readouterr().out
    show_summary("demo", summary | {"top1": None})
    assert capsys.readouterr().out == ""


def test_the_table_shows_paths_and_names_as_they_are_and_to_their_end(capsys):
    root = "/data/runs [old]/" + "a folder with a long name/" * 4
    summary = {"top1": 97.2, "top1_ema": None, "max_accuracy": 97.5, "mesh": {"dp": 1, "tp": 2}, "steps": 10}
    summary |= {"images_per_s": None, "checkpoint": f"{root}best.ckpt", "tensorboard": f"{root}tensorboard"}
    show_summary("d [b]", summary | {"unreadable_train": {"count": 1, "files": ["cat/a [/b].jpg"]}})
    printed = capsys.readouterr().out
    whole = "".join(printed.replace("│", "").split())
    for part in ("d [b]", f"checkpoint {root}best.ckpt", f"tensorboard --logdir '{root}tensorboard'", "cat/a [/b].jpg"):
        assert "".join(part.split()) in whole
    assert "…" not in printed
