"""The process between a run and its terminal: prints the run's lines, and keeps its display below them.

    python -m tinyexp.observability.live <run folder> <title> <Status.written_at>      reads the lines from stdin

It is a process of its own, so that nothing that happens to it or to the run can hurt the other: it ends when nobody can write to
it any more, or with its parent, and has printed all by then.
"""

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tinyexp.observability.display import RunDisplay

REFRESH_S = 0.25
SHOW_CURSOR = "\x1b[?25h"


class LiveLines:
    """Lines that scroll, above a display that stays."""

    def __init__(self, display: RunDisplay, terminal: TextIO) -> None:
        self._display = display
        self._terminal = terminal
        self._console = Console(file=terminal)
        self._live: Live | None = None
        self._pending = b""  # a line that has yet to end
        self._is_broken = False  # drawing has failed, and is not tried again

    def write(self, text: bytes) -> None:
        """Print the whole lines; before there is a display, everything as it comes."""
        if self._live is None:
            self._copy(text)
            self._pending = text.rpartition(b"\n")[2] if text else self._pending
            return
        lines, newline, self._pending = (self._pending + text).rpartition(b"\n")
        if not newline:
            return
        try:
            self._print(lines)
        except Exception as error:  # a character that this terminal has no bytes for, say
            self._give_up(error, lines + b"\n" + self._pending)

    def refresh(self) -> None:
        """Draw what the run has written meanwhile."""
        if self._is_broken:
            return
        try:
            self._display.poll()
            if self._display.status is None or self._display.status.has_ended:
                self._clear()
            else:
                self._draw()
        except Exception as error:  # a display is worth no run
            self._give_up(error, self._pending)

    def close(self) -> None:
        """Clear the display and print what is left."""
        self._clear()
        self._terminal.flush()

    def _draw(self) -> None:
        if self._live is None:
            if self._pending:
                self._copy(b"\n")  # a line stood unfinished where the display comes
                self._pending = b""
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(self._display.draw(), refresh=True)

    def _give_up(self, error: Exception, left: bytes) -> None:
        """From now on lines are copied as they come, beginning with what is left. Raises: OSError where the terminal has gone."""
        self._is_broken, self._pending = True, b""
        with contextlib.suppress(Exception):
            self._clear()
        said = f"the display of the run has ended: {type(error).__name__}: {error}\n"
        self._copy((SHOW_CURSOR + said).encode(errors="backslashreplace") + left)

    def _clear(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            if self._pending:
                self._print(self._pending)
                self._pending = b""

    def _copy(self, text: bytes) -> None:
        self._terminal.flush()
        self._terminal.buffer.write(text)
        self._terminal.buffer.flush()

    def _print(self, lines: bytes) -> None:
        self._console.print(Text.from_ansi(lines.decode(errors="replace")), soft_wrap=True)


def main() -> None:
    folder, title, before = sys.argv[1:]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(errors="replace")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, whose last lines are yet to come
    pass_on(LiveLines(RunDisplay(Path(folder), title, before=int(before)), sys.stdout), stop)


def pass_on(lines: LiveLines, stop: threading.Event) -> None:
    """From stdin to the terminal, until nobody can write, or the parent ends or asks for it."""
    parent, due = os.getppid(), time.monotonic()
    with contextlib.suppress(OSError):  # the terminal has gone
        while os.getppid() == parent and not stop.is_set():
            if select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
                text = os.read(0, 1 << 16)
                if not text:
                    break
                lines.write(text)
            if time.monotonic() >= due:
                lines.refresh()
                due = time.monotonic() + REFRESH_S
        while select.select([0], [], [], 0)[0] and (text := os.read(0, 1 << 16)):
            lines.write(text)
        lines.close()


if __name__ == "__main__":
    main()
