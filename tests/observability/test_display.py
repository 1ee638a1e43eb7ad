import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from tinyexp.observability.display import RunDisplay, figures
from tinyexp.observability.status import Status
from tinyexp.observability.step_log import StepLog

STATUS = Status(epoch=1, epochs=3, steps_in_epoch=20, steps=60, first_step=20, phase="training")
RECORD = {"epoch": 1, "loss": 1.25, "lr": 1e-3, "images_per_s": 1234.5, "step_s": 0.25, "data_s": 0.002}
RECORD |= {"link_share": 0.125, "peak_memory_bytes": 2**30, "time": "2026-01-01T00:00:00.000+00:00"}


def drawn(display, width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(display.draw())
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def run(tmp_path):
    """A display of a run, and its log of steps, of which six are done."""
    display = RunDisplay(tmp_path, "demo", before=Status.written_at(tmp_path))
    STATUS.write(tmp_path)
    log = StepLog(tmp_path, first_step=20)
    for step in range(20, 26):
        log.write_step(RECORD | {"step": step, "epoch_step": step - 20})
    yield display, log, tmp_path
    log.close()


def test_it_shows_where_the_run_is_what_it_learns_and_what_that_costs(run):
    display, _, _ = run
    display.poll()
    text = drawn(display)
    for part in ("demo  training, epoch 1 of 3", "26/60 steps", "6/20", "loss 1.2500", "lr 1.00e-03"):
        assert part in text
    assert "1,234 images/s   step 250 ms   data 2 ms   link 12 %   memory 1,024 MiB" in text
    assert "top-1" not in text


def test_what_is_told_for_each_second_is_that_of_all_the_seconds():
    steps = [
        RECORD | {"step": step, "epoch_step": step, "step_s": seconds, "images_per_s": 64 / seconds, "link_share": share}
        for step, (seconds, share) in enumerate([(0.1, 0.5), (0.1, 0.5), (0.1, 0.5), (1.7, 0.1)])
    ]
    costs = str(figures(steps, None)[1])
    assert "128 images/s   step 500 ms" in costs  # 256 images in 2 s
    assert "link 16 %" in costs


@pytest.mark.parametrize("width", [80, 40])
def test_no_line_is_longer_than_the_terminal(run, width):
    display, _, folder = run
    replace(STATUS, top1=96.1, phase="evaluating", steps=10**6, steps_in_epoch=10**5).write(folder)
    display.poll()
    lines = drawn(display, width).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= width


def test_an_evaluation_is_named_and_its_epoch_is_full(run):
    display, _, folder = run
    replace(STATUS, phase="evaluating", top1=96.1).write(folder)
    display.poll()
    text = drawn(display)
    assert "demo  evaluating, epoch 1 of 3" in text
    assert "20/20" in text
    assert "top-1 96.10 %" in text


def test_what_is_null_is_left_out_and_a_nan_is_said(run):
    display, log, _ = run
    log.write_step(RECORD | {"step": 26, "epoch_step": 6, "loss": float("nan"), "link_share": None})
    display.poll()
    text = drawn(display)
    assert "loss not finite" in text
    assert "link" not in text


def test_the_time_that_is_left_follows_from_the_steps_that_were_seen(run, monkeypatch):
    display, log, _ = run
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    display.poll()
    for step in range(26, 36):
        log.write_step(RECORD | {"step": step, "epoch_step": step - 20})
    display.poll()
    now[0] += 20.0
    assert "gone, 0:00:48 left" in drawn(display)  # 24 of 60 steps are left, and the last 10 took 20 s


def test_ranks_that_start_again_begin_a_new_estimate(run):
    display, _, folder = run
    display.poll()
    again = StepLog(folder, first_step=22)
    again.write_step(RECORD | {"step": 22, "epoch_step": 2})
    again.close()
    display.poll()
    text = drawn(display)
    assert "23/60 steps" in text
    assert "left" not in text


def test_nothing_is_shown_of_an_earlier_run(run):
    _, _, folder = run
    display = RunDisplay(folder, "demo", before=Status.written_at(folder))
    display.poll()
    assert display.status is None
    assert drawn(display).strip() == ""
    os.utime(folder / "status.json", ns=(1, 1))  # the new run has written it
    display.poll()
    assert display.status == STATUS
