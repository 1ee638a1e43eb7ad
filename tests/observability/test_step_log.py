import json
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers.disk import full_beyond
from tinyexp.observability.step_log import StepLog


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def strictly(path: Path) -> list[dict]:
    """The records, by a reader that accepts nothing beside JSON."""
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def written(folder: Path, steps: range, *, first_step: int | None = None) -> Path:
    log = StepLog(folder, first_step=steps.start if first_step is None else first_step)
    for step in steps:
        log.write_step({"step": step, "loss": float(step)})
    log.close()
    return log.path


def test_a_loss_that_is_not_finite_is_null_and_named(tmp_path):  # case A18
    log = StepLog(tmp_path, first_step=0)
    log.write_step({"step": 0, "loss": float("nan"), "lr": 1e30, "images_per_s": float("inf")})
    assert strictly(log.path) == [
        {"step": 0, "loss": None, "lr": 1e30, "images_per_s": None, "nonfinite": ["loss", "images_per_s"]}
    ]
    log.close()


def test_a_line_can_be_read_while_the_file_is_open(tmp_path):
    log = StepLog(tmp_path / "new", first_step=0)
    log.write_step({"step": 0})
    assert strictly(log.path) == [{"step": 0}]
    log.close()


def test_a_resumed_run_keeps_the_steps_before_it_and_drops_the_later_ones(tmp_path):
    path = written(tmp_path, range(6))
    before = path.read_bytes()
    written(tmp_path, range(4, 4))
    assert [record["step"] for record in strictly(path)] == [0, 1, 2, 3]
    assert before.startswith(path.read_bytes())
    written(tmp_path, range(4, 8))
    assert [record["step"] for record in strictly(path)] == list(range(8))
    assert strictly(written(tmp_path, range(0))) == []


@pytest.mark.parametrize("left", [b'{"step": 3, "lo', b'{"step": 2}', b"\x00\x00\n", b'["step"]\n', b'{"epoch": 1}\n'])
def test_what_a_killed_run_has_left_unfinished_is_dropped(tmp_path, left):
    path = written(tmp_path, range(3))
    path.write_bytes(path.read_bytes() + left)
    written(tmp_path, range(3, 5))
    assert [record["step"] for record in strictly(path)] == [0, 1, 2, 3, 4]


def test_a_line_for_which_there_is_no_room_leaves_nothing_behind(tmp_path):
    log = StepLog(tmp_path, first_step=0)
    log.write_step({"step": 0})
    for _ in range(2):
        with full_beyond(log.path.stat().st_size + 5), pytest.raises(OSError):
            log.write_step({"step": 1, "loss": 1.0})
    log.write_step({"step": 2})
    assert [record["step"] for record in strictly(log.path)] == [0, 2]
    log.close()
