import json

from tinyexp.observability.log import RunLog, show_summary, strict_json, write_summary
from tinyexp.observability.plots import draw_curves


def test_each_epoch_is_one_line_and_a_run_keeps_those_before_its_first_epoch(tmp_path):
    log = RunLog(tmp_path)
    log.write_epoch({"epoch": 0, "test_acc1": 1.0})
    log.write_epoch({"epoch": 1, "test_acc1": 2.0})
    assert [row["epoch"] for row in log.rows()] == [0, 1]
    assert [row["epoch"] for row in RunLog(tmp_path, first_epoch=1).rows()] == [0]
    assert RunLog(tmp_path).rows() == []


def test_a_line_that_a_killed_run_has_left_unfinished_is_dropped(tmp_path):
    RunLog(tmp_path).write_epoch({"epoch": 0, "test_acc1": 1.0})
    with open(tmp_path / "log.txt", "a") as file:
        file.write('{"epoch": 1, "te')
    RunLog(tmp_path, first_epoch=2).write_epoch({"epoch": 2, "test_acc1": 3.0})
    assert [json.loads(line)["epoch"] for line in (tmp_path / "log.txt").read_text().splitlines()] == [0, 2]


def test_numbers_that_are_not_finite_are_null_and_named():
    text = strict_json({"loss": float("nan"), "lr": 1.0, "norm": float("inf")})
    row = json.loads(text, parse_constant=lambda word: 1 / 0)
    assert row == {"loss": None, "lr": 1.0, "norm": None, "nonfinite": ["loss", "norm"]}


def test_a_summary_creates_its_folder(tmp_path):
    path = write_summary(tmp_path / "new", {"top1": 1.5})
    assert json.loads(path.read_text()) == {"top1": 1.5}


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
    show_summary("demo", summary | {"top1": None})
    assert capsys.readouterr().out == ""
