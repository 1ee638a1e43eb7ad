import io
import threading
from typing import Any

import pytest

from tinyexp.observability.display import RunDisplay
from tinyexp.observability.live import LiveLines, pass_on
from tinyexp.observability.status import Status

STATUS = Status(epoch=0, epochs=1, steps_in_epoch=4, steps=4, first_step=0, phase="training")


@pytest.fixture
def stream() -> Any:
    return io.TextIOWrapper(io.BytesIO(), write_through=True)


@pytest.fixture
def terminal(tmp_path, monkeypatch, stream):
    """Lines above a display, and what has reached the terminal."""
    for name, value in {"TERM": "xterm", "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    display = RunDisplay(tmp_path, "demo", before=0)
    lines = LiveLines(display, stream)
    yield lines, display, lambda: stream.buffer.getvalue().decode()
    lines.close()


def test_before_there_is_a_display_everything_passes_as_it_comes(terminal):
    lines, _, screen = terminal
    lines.write(b"10 %\r20 %")
    lines.refresh()
    assert screen() == "10 %\r20 %"


def test_lines_are_printed_whole_and_long_ones_are_not_cut(terminal, tmp_path):
    lines, _, screen = terminal
    STATUS.write(tmp_path)
    lines.refresh()
    assert "demo" in screen()
    lines.write(b"half a li")
    assert "half" not in screen()
    lines.write(b"ne\n" + b"x" * 100 + b"\n[bold] is no markup\nleft")
    for part in ("half a line", "x" * 100, "[bold] is no markup"):
        assert part in screen()
    lines.close()
    assert screen().rstrip().endswith("left")


def test_a_run_that_has_ended_is_drawn_no_more(terminal, tmp_path):
    lines, _, screen = terminal
    STATUS.write(tmp_path)
    lines.refresh()
    Status(**{**vars(STATUS), "phase": "finished"}).write(tmp_path)
    lines.refresh()
    lines.write(b"plain\n")
    assert screen().endswith("plain\n")


def test_a_display_that_fails_says_so_once_and_the_lines_go_on(terminal, tmp_path, monkeypatch):
    lines, display, screen = terminal
    STATUS.write(tmp_path)
    lines.refresh()

    def fail():
        raise ZeroDivisionError("a fault of the test")

    monkeypatch.setattr(display, "draw", fail)
    for _ in range(3):
        lines.refresh()
    lines.write(b"it goes on\n")
    assert screen().count("the display of the run has ended: ZeroDivisionError: a fault of the test") == 1
    assert screen().endswith("it goes on\n")


def test_a_line_that_the_display_cannot_print_is_copied_and_so_are_those_after_it(terminal, stream, tmp_path):
    lines, _, screen = terminal
    STATUS.write(tmp_path)
    lines.refresh()
    stream.reconfigure(encoding="ascii")
    lines.write("déjà\nand more".encode())
    lines.write(b" of it\n")
    lines.refresh()
    assert screen().count("the display of the run has ended: UnicodeEncodeError") == 1
    assert screen().endswith("déjà\nand more of it\n")
    assert screen().rindex("\x1b[?25h") > screen().rindex("\x1b[?25l")


def test_it_is_drawn_at_most_four_times_a_second_however_fast_the_lines_come(terminal, tmp_path, monkeypatch):
    lines, _, _ = terminal
    drawn = []
    monkeypatch.setattr(lines, "refresh", lambda: drawn.append(True))
    ready = iter([True] * 1000)
    monkeypatch.setattr("select.select", lambda *_: ([0] if next(ready, False) else [], [], []))
    left = iter([b"line\n"] * 500)
    monkeypatch.setattr("os.read", lambda *_: next(left, b""))
    pass_on(lines, threading.Event())
    assert 1 <= len(drawn) <= 5
