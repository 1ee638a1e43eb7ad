"""A live display of a run where a person looks at a terminal, and nothing at all elsewhere."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tinyexp.observability.status import Status
from tinyexp.signals import held_back

END_S = 1.0  # for the last lines to be printed
SHOW_CURSOR = b"\x1b[?25h"
STDOUT, STDERR = 1, 2


def is_interactive() -> bool:
    """Whether stdout is a terminal on which lines can be redrawn, this process is in front there, and it is no build server."""
    if not os.isatty(STDOUT) or os.environ.get("TERM", "dumb") in ("dumb", "unknown") or os.environ.get("CI"):
        return False
    try:
        return os.tcgetpgrp(STDOUT) == os.getpgrp()
    except OSError:  # not the terminal of this session, as for a rank of torchrun: nothing there is in front or behind
        return True


@contextlib.contextmanager
def live_display(folder: Path, title: str) -> Iterator[None]:
    """While the block runs, all that this process and those it starts print goes through a display of the run in `folder`.

    The display begins when the run says what it does (`status.json`). Should its process end first, the lines are copied as they
    are. A stderr that leads elsewhere stays so.
    """
    if not is_interactive():
        yield
        return
    flush()
    reader, writer = os.pipe()
    terminal = {descriptor: os.dup(descriptor) for descriptor in (STDOUT, STDERR) if os.isatty(descriptor)}
    process = _start_display(folder, title, reader)
    for descriptor in terminal:
        os.dup2(writer, descriptor)
    os.close(writer)
    copier = threading.Thread(target=_copy_after, args=(process, reader, terminal[STDOUT]), daemon=True)
    copier.start()
    try:
        yield
    finally:
        flush()
        for descriptor, saved in terminal.items():
            os.dup2(saved, descriptor)
        _end(process)
        copier.join(END_S)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _start_display(folder: Path, title: str, reader: int) -> subprocess.Popen[bytes]:
    """A key that interrupts the run is not for the display, from its first moment on: what is blocked here is blocked there."""
    with held_back(signal.SIGINT, signal.SIGQUIT):
        return subprocess.Popen(
            [sys.executable, "-m", "tinyexp.observability.live", str(folder), title, str(Status.written_at(folder))],
            stdin=reader,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the display, then ask it to end, then end it: a terminal that takes nothing holds it."""
    for ask in (process.terminate, process.kill):  # something else holds the pipe open, or the terminal stands still
        try:
            process.wait(END_S)
            return
        except subprocess.TimeoutExpired:
            ask()
    process.wait()


def _copy_after(process: subprocess.Popen[bytes], reader: int, terminal: int) -> None:
    """Once the display has ended, print what comes: it must never be full, nor closed, for the ranks that write to it."""
    text = SHOW_CURSOR if process.wait() else b""  # which it would have shown at its end
    while True:
        with contextlib.suppress(OSError):  # the terminal has gone, but what is printed is still to be taken away
            _write_all(terminal, text)
        if not (text := os.read(reader, 1 << 16)):
            return


def _write_all(terminal: int, text: bytes) -> None:
    while text:
        text = text[os.write(terminal, text) :]
