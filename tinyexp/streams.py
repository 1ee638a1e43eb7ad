"""stdout and stderr as a command of this project needs them. Importing this file loads nothing heavy."""

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from tinyexp.errors import MachineError

STANDARD = (0, 1, 2)  # descriptors of stdin, stdout, stderr
STDOUT, STDERR = 1, 2
ONLY_IN_FILES = "tinyexp.own_file"  # the logger of lines that never reach the console

own_file = logging.getLogger(ONLY_IN_FILES)
own_file.propagate = False
own_file.addHandler(logging.NullHandler())  # else logging itself prints what no file takes


class Outlet(io.FileIO):
    """A descriptor that always takes what is written: what it cannot take is dropped, and `error` is the first reason why.

    Each write is tried, so that a disk with room again gets the lines from then on.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.error is None:
                self.error = error
                name = "stdout" if self.fileno() == STDOUT else "stderr"
                own_file.warning("%s takes no more: %s; what is printed there is dropped", name, error.strerror)
            return memoryview(data).nbytes


class Output(io.TextIOWrapper):
    """stdout or stderr, on which nothing fails: neither a reader that has gone, nor a full disk, nor a name that is no text."""

    def __init__(self, descriptor: int, **options: Any) -> None:
        self.outlet = Outlet(descriptor)
        super().__init__(io.BufferedWriter(self.outlet), errors="backslashreplace", **options)


def fill_closed_descriptors() -> None:
    """Let stdin, stdout and stderr that were closed lead nowhere, before a file of the run gets the number of one of them."""
    for descriptor in STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, this one


def take_output() -> None:
    """From now on nothing that becomes of stdout or stderr ends this process: what cannot be written there is dropped.

    For a command. A stream that leads elsewhere, as in a notebook or a test, stays as it is.
    """
    fill_closed_descriptors()
    sys.stdout, sys.stderr = _taken(sys.stdout, STDOUT), _taken(sys.stderr, STDERR)


def nowhere() -> TextIO:
    """A stream in place of one that was closed when Python started, which is None then: code that prints is not ready for it."""
    return open(os.devnull, "w", encoding="utf-8")


def _taken(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:
        return nowhere()
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, Output):
        return stream
    stream.reconfigure(errors="backslashreplace")
    if _descriptor(stream) != descriptor:
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    _replaced.append(stream)
    return Output(descriptor, encoding=stream.encoding, line_buffering=stream.line_buffering or stream.write_through)


_replaced: list[TextIO] = []  # kept, because a stream that nobody holds may close the descriptor


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


def lost_output() -> OSError | None:
    """Why stdout did not take all that was printed; None where it did."""
    sys.stdout.flush()
    return sys.stdout.outlet.error if isinstance(sys.stdout, Output) else None


@contextlib.contextmanager
def end_of_output() -> Iterator[None]:
    """For a command that is there to print: where not all of it could be printed, this process ends with another status than 0.

    In silence and with the status that SIGPIPE would give where nobody reads on, as behind `| head`; else with one message.
    """
    take_output()
    try:
        yield
    except SystemExit as left:
        if not left.code:
            _require_output()
        raise
    _require_output()


def _require_output() -> None:
    error = lost_output()
    if isinstance(error, BrokenPipeError):
        sys.exit(128 + signal.SIGPIPE)
    if error is not None:
        print(f"error: stdout cannot be written: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(MachineError.exit_status)
