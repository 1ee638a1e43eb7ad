"""SIGTERM and SIGINT as a request that is met at the next good moment, in the command that starts a run and in its ranks.

Importing this file loads nothing heavy.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

REPEAT_S = 0.5  # torchrun passes on a Ctrl-C that the terminal has sent to the ranks as well


def leave_when_interrupted() -> None:
    """From now on Ctrl-C ends this process with a word and status 130, where it ended it with a traceback.

    For a command, whose imports take seconds. What handles KeyboardInterrupt itself goes on doing so.
    """
    if sys.excepthook is _leave_if_interrupted:
        return
    _other_hooks.append(sys.excepthook)
    sys.excepthook = _leave_if_interrupted


_other_hooks: list[Any] = []  # the one that was there before


def _leave_if_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _other_hooks[-1](kind, error, trace)
        return
    print("interrupted", file=sys.stderr, flush=True)
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(128 + signal.SIGINT)  # a hook has no other way to choose the status; no run is left that would need a cleanup


@contextlib.contextmanager
def held_back(*numbers: int) -> Iterator[None]:
    """These signals wait until the block ends. A process that starts in it inherits that, and never gets them unless it asks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopRequest:
    """SIGTERM and SIGINT, counted instead of obeyed while the block runs. Outside the main thread it only ever counts 0.

    A signal that comes within REPEAT_S of one that counted is its repetition and does not count.
    second_leaves: the second signal that counts ends this process at once, with the status that a shell gives the first one.
    For a rank, which has no launcher of ours to kill it; it runs no cleanup, so files must be replaced by renaming.
    """

    def __init__(self, *, second_leaves: bool = False) -> None:
        self.count = 0
        self.number = 0  # of the first of them
        self._second_leaves = second_leaves
        self._counted_at = -REPEAT_S
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.count and now - self._counted_at < REPEAT_S:
            return
        self._counted_at = now
        self.count += 1
        self.number = self.number or number
        if self._second_leaves and self.count > 1:
            os._exit(128 + self.number)

    @property
    def name(self) -> str:
        """SIGTERM or SIGINT, the first that came; empty while none has."""
        return signal.Signals(self.number).name if self.number else ""

    def raise_if_asked(self) -> None:
        """Raises: KeyboardInterrupt after Ctrl-C, SystemExit(143) after SIGTERM."""
        if self.count:
            raise KeyboardInterrupt if self.number == signal.SIGINT else SystemExit(128 + self.number)
