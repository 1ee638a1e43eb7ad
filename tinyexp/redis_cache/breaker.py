"""When to leave a server alone, and when to try it again: one decision for all processes of a rank."""

import math
import multiprocessing
import time
from collections.abc import Callable

FIRST_PAUSE_S = 5.0

PAUSE, RETRY_AT, FAILED_AT = range(3)


class Breaker:
    """A switch for each of `count` things that may fail, in memory that forked processes share.

    After a failure the thing is left alone for `first_pause_s`, then one process tries it, and each failure in a row doubles the
    pause, up to the largest.
    """

    def __init__(
        self,
        count: int,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        largest_pause_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_pause_s = first_pause_s
        self._largest_pause_s = largest_pause_s
        self._clock = clock  # the same in all processes of the machine
        self._lock = multiprocessing.Lock()
        self._switches = multiprocessing.RawArray("d", 3 * count)

    def is_fine(self, index: int) -> bool:
        """Whether it has not failed since it last succeeded."""
        return not self._get(index, PAUSE)  # without the lock: asked for each batch

    def takes_turn(self, index: int) -> bool:
        """Whether to try now what is not fine. A True is the only one until that try has an end, or the next pause has."""
        with self._lock:
            now = self._clock()
            if not self._get(index, PAUSE) or now < self._get(index, RETRY_AT):
                return False
            self._set(index, RETRY_AT, now + self._get(index, PAUSE))
            return True

    def allows(self, index: int) -> bool:
        """Whether it is fine, or it is this process's turn to try it."""
        return self.is_fine(index) or self.takes_turn(index)

    def succeeded(self, index: int) -> None:
        if not self.is_fine(index):
            with self._lock:
                self._set(index, PAUSE, 0.0)

    def failed(self, index: int, *, since: float) -> bool:
        """Note that a try which began at `since`, by the clock, has failed. Whether it is the first failure in a row."""
        with self._lock:
            now, pause = self._clock(), self._get(index, PAUSE)
            if pause and since <= self._get(index, FAILED_AT):
                return False  # it was under way when another process noted the same failure
            self._set(index, PAUSE, min(2 * pause or self._first_pause_s, self._largest_pause_s))
            self._set(index, RETRY_AT, now + self._get(index, PAUSE))
            self._set(index, FAILED_AT, now)
            return not pause

    def _get(self, index: int, part: int) -> float:
        return self._switches[3 * index + part]

    def _set(self, index: int, part: int, value: float) -> None:
        self._switches[3 * index + part] = value
