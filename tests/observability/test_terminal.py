"""A terminal as a person has it: a pseudo-terminal, with a run that says what it does."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from tinyexp.observability.terminal import is_interactive

ROOT = Path(__file__).parents[2]
SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"

RUN = """
import os, signal, sys, time
from pathlib import Path
from tinyexp.observability.status import Status
from tinyexp.observability.step_log import StepLog
from tinyexp.observability.terminal import live_display

folder = Path(sys.argv[1])
status = Status(epoch=0, epochs=1, steps_in_epoch=4, steps=4, first_step=0, phase="training")
record = {"epoch": 0, "loss": 1.0, "lr": 1e-3, "images_per_s": 9.0, "step_s": 1.0, "data_s": 0.1,
          "link_share": None, "peak_memory_bytes": None}
def wait(seen):
    deadline = time.monotonic() + 20
    while not (folder / seen).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
with live_display(folder, "demo"):
    print("before", flush=True)
    status.write(folder)
    log = StepLog(folder, first_step=0)
    log.write_step(record | {"step": 0, "epoch_step": 0})
    wait("drawn")
    if os.fork() == 0:  # a rank
        os.write(1, b"a line of a rank\\n")
        os._exit(0)
    os.wait()
    BODY
print("after", flush=True)
"""


class Terminal:
    """A program on a pseudo-terminal of 100 columns."""

    def __init__(self, folder, body, **variables):
        self.folder = folder
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN.replace("BODY", textwrap.indent(body, "    ").strip()), str(folder)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=environment | {"TERM": "xterm"} | variables,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def read_until(self, part):
        """Read until the program has printed this, or has ended."""
        deadline = time.monotonic() + 30
        while part not in self.text and time.monotonic() < deadline:
            try:
                text = os.read(self.master, 1 << 16)
            except OSError:  # all that had the terminal open are gone
                break
            self.text += text.decode(errors="replace")
        return self.text

    def go_on(self):
        (self.folder / "drawn").touch()

    def end(self):
        self.read_until("nothing prints this")
        os.close(self.master)
        return self.process.wait(20)


def test_lines_scroll_above_a_display_which_is_gone_when_the_run_has_ended(tmp_path):
    terminal = Terminal(tmp_path, "print('the last line', end='')")
    assert "demo" in terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == 0
    text = terminal.text
    assert text.index("before") < text.index("9 images/s") < text.index("a line of a rank")
    assert text.index("the last line") < text.index("after")
    assert text.count("a line of a rank") == 1
    assert "images/s" not in text[text.rindex("the last line") :]
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_an_error_is_printed_below_and_whole(tmp_path):
    terminal = Terminal(tmp_path, "raise ValueError('a fault of the test')")
    terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == 1
    assert "images/s" not in terminal.text[terminal.text.index("Traceback") :]
    assert "ValueError: a fault of the test" in terminal.text
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)


def test_the_terminal_is_restored_when_the_run_is_killed(tmp_path):
    terminal = Terminal(tmp_path, "os.write(1, b'its last words'); os.kill(os.getpid(), signal.SIGKILL)")
    terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == -9
    assert "its last words" in terminal.text
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)


def test_a_run_outlives_its_display(tmp_path):
    body = (
        "children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "os.kill(int(children[0]), signal.SIGKILL)\n"
        "print('x' * 200_000)\n"
        "print('it goes on')"
    )
    terminal = Terminal(tmp_path, body)
    terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == 0
    assert terminal.text.count("x" * 1000) >= 100
    assert terminal.text.index("it goes on") < terminal.text.index("after")


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}], ids=str)
def test_lines_alone_are_printed_where_they_cannot_be_redrawn(tmp_path, variables):
    terminal = Terminal(tmp_path, "pass", **variables)
    terminal.go_on()
    assert terminal.end() == 0
    assert terminal.text.splitlines() == ["before", "a line of a rank", "after"]


def test_no_color_draws_without_colours(tmp_path):
    terminal = Terminal(tmp_path, "pass", NO_COLOR="1")
    assert "9 images/s" in terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == 0
    assert "\x1b[3" not in terminal.text


def test_a_run_whose_terminal_has_gone_goes_on(tmp_path):
    body = "wait('closed')\nfor _ in range(50): os.write(1, b'x' * 10_000)\n(folder / 'ended').touch()"
    terminal = Terminal(tmp_path, body)
    terminal.read_until("9 images/s")
    terminal.go_on()
    terminal.read_until("a line of a rank")
    os.close(terminal.master)
    (tmp_path / "closed").touch()
    try:
        terminal.process.wait(20)
    finally:
        terminal.process.kill()
    assert (tmp_path / "ended").exists()


def test_a_display_that_was_killed_leaves_a_cursor(tmp_path):
    body = (
        "children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "os.kill(int(children[0]), signal.SIGINT)\n"
        "time.sleep(0.3)\n"
        "assert os.path.exists(f'/proc/{children[0]}/exe')\n"
        "os.kill(int(children[0]), signal.SIGKILL)"
    )
    terminal = Terminal(tmp_path, body)
    terminal.read_until("9 images/s")
    terminal.go_on()
    assert terminal.end() == 0
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)


def test_a_display_that_stands_still_holds_no_run(tmp_path):
    body = (
        "children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "os.kill(int(children[0]), signal.SIGSTOP)"
    )
    terminal = Terminal(tmp_path, body)
    terminal.read_until("9 images/s")
    terminal.go_on()
    try:
        assert "after" in terminal.read_until("after\r\n")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.process.kill()


def test_only_who_is_in_front_of_its_terminal_draws_there(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)

    def has_no_session(_):
        raise OSError(25, "not the terminal of this session")

    for in_front, expected in ((lambda _: os.getpgrp(), True), (lambda _: os.getpgrp() + 1, False), (has_no_session, True)):
        monkeypatch.setattr(os, "tcgetpgrp", in_front)
        assert is_interactive() is expected
