"""What a rank logs: all of it in a file of its own, and what a person must see on the console, once.

Lines that the main rank prints are no part of this: they are the run's own output.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tinyexp.process import Axis, host_name
from tinyexp.streams import own_file

FOLDER = "logs"
OWN = "tinyexp"  # loggers whose warnings are this rank's alone; other libraries say the same on every rank

logger = logging.getLogger("tinyexp")


def log_to_console() -> None:
    """Give this process a console, unless it has one: INFO and above on stderr."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(Console(Axis()))
        root.setLevel(logging.INFO)


class Console(logging.StreamHandler[TextIO]):
    """stderr, on which ranks name themselves and do not repeat each other."""

    def __init__(self, world: Axis) -> None:
        super().__init__(sys.stderr)
        name = f"rank {world.rank}: " if world.size > 1 else ""
        self.setFormatter(logging.Formatter(f"%(levelname)s: {name}%(message)s"))
        self._is_main = world.rank == 0

    def emit(self, record: logging.LogRecord) -> None:
        is_own = record.name.partition(".")[0] == OWN
        if self._is_main or record.levelno >= (logging.WARNING if is_own else logging.ERROR):
            super().emit(record)


@contextlib.contextmanager
def rank_logging(world: Axis, run_folder: Path | None) -> Iterator[None]:
    """While the block runs, this process logs as one rank of a run: INFO and above to `logs/rank-<r>.log` of its folder.

    run_folder: None where the run keeps no such files. What ends the block, and Python's own warnings, are logged too.
    """
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    others = [handler for handler in before if not isinstance(handler, Console)]
    root.handlers[:] = others or [Console(world)]
    root.setLevel(logging.INFO)
    try:
        with _python_warnings_are_logged(), _own_file(world, run_folder):
            yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@contextlib.contextmanager
def _own_file(world: Axis, run_folder: Path | None) -> Iterator[None]:
    if run_folder is None:
        yield
        return
    file = RankFile(run_folder / FOLDER / f"rank-{world.rank}.log")
    loggers = (logging.getLogger(), own_file)
    for each in loggers:
        each.addHandler(file)
    try:
        own_file.info("rank %d of %d starts on %s, pid %d", world.rank, world.size, host_name(), os.getpid())
        yield
        own_file.info("rank %d of %d ends", world.rank, world.size)
    except BaseException:
        own_file.exception("rank %d of %d ends with an error:", world.rank, world.size)
        raise
    finally:
        for each in loggers:
            each.removeHandler(file)
        file.close()


class RankFile(logging.FileHandler):
    """A log that grows from run to run, and that no full disk turns into an error of the run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
        self._has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.stream is None:
                os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            super().emit(record)
        except OSError:  # it cannot be opened; what cannot be written goes to handleError
            self.handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was said, and must not take the place of the result
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("%s cannot be written: %s; the run goes on without it", self.baseFilename, sys.exc_info()[1])


@contextlib.contextmanager
def _python_warnings_are_logged() -> Iterator[None]:
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
