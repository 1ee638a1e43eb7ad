"""The end of a process that takes no step any more, where no other rank waits for it and could tell."""

import faulthandler
from collections.abc import Iterable, Iterator
from typing import TypeVar

STDERR = 2

T = TypeVar("T")


def within(limit_s: float, batches: Iterable[T]) -> Iterator[T]:
    """The same batches, each of which must be loaded and done within `limit_s` seconds.

    Where one is not, the stacks of all threads go to stderr and the process ends with status 1. A thread of C code sees to it,
    which no lock of Python stops.
    """
    try:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)
        for batch in batches:
            yield batch
            faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)
    finally:
        faulthandler.cancel_dump_traceback_later()
