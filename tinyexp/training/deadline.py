"""The end of a process that takes no step any more, where no other rank waits for it and has told."""

import faulthandler
from collections.abc import Iterable, Iterator
from typing import TypeVar

STDERR = 2
TO_NAME_S = 60.0  # for the other ranks to end, a save of theirs included, and for the launcher to name the one that hangs

T = TypeVar("T")


def within(batches: Iterable[T], timeout_s: float, num_ranks: int) -> Iterator[T]:
    """The same batches, each of which must be loaded and done within twice `timeout_s`, for which a collective waits.

    Where one is not, the stacks of all threads go to stderr and the process ends with status 1. A thread of C code sees to it,
    which no lock of Python stops. A rank that others wait for gets TO_NAME_S more: it is they who end first, and their launcher
    that tells which rank hangs.
    """
    limit_s = 2 * timeout_s + (TO_NAME_S if num_ranks > 1 else 0.0)
    try:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)
        for batch in batches:
            yield batch
            faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)
    finally:
        faulthandler.cancel_dump_traceback_later()
