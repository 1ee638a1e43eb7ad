"""When to leave a server alone, and when to try it again: one decision for all processes of a rank."""

import multiprocessing
import time
from collections.abc import Callable

FIRST_PAUSE_S = 5.0
WAITING_S = 8.0  # that servers may cost a rank in its whole run; with the requests under way then, below 10

PAUSE, RETRY_AT, FAILED_AT = range(3)


class Breaker:
    """A switch for each of `count` things that may fail, in memory that forked processes share.

    After a failure the thing is left alone for `first_pause_s`, then one process tries it, and each failure in a row doubles the
    pause: in a run of a day that is 14 tries. What the failures cost in waiting is added up, time that several processes waited
    at once counting once, and beyond WAITING_S there are no more tries.
    """

    def __init__(self, count: int, *, first_pause_s: float = FIRST_PAUSE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_pause_s = first_pause_s
        self._clock = clock  # the same in all processes of the machine
        self._lock = multiprocessing.Lock()
        self._switches = multiprocessing.RawArray("d", 3 * count)
        self._waited = multiprocessing.RawArray("d", 2)  # seconds so far, and until when they are counted

    def allows(self, index: int) -> bool:
        """Whether to try now. A True after a pause is the only one until that try has an end, or the next pause has."""
        with self._lock:
            if not self._get(index, PAUSE):
                return not self._is_spent
            now = self._clock()
            if self._is_spent or now < self._get(index, RETRY_AT):
                return False
            self._set(index, RETRY_AT, now + self._get(index, PAUSE))
            return True

    def succeeded(self, index: int) -> None:
        if self._get(index, PAUSE):  # without the lock: it is nearly always 0
            with self._lock:
                self._set(index, PAUSE, 0.0)

    def failed(self, index: int, *, since: float) -> bool:
        """Note that a try which began at `since`, by `now()`, has failed. Whether it is the first failure in a row."""
        with self._lock:
            now, pause = self._clock(), self._get(index, PAUSE)
            self._waited[0] += max(0.0, now - max(since, self._waited[1]))
            self._waited[1] = now
            if pause and since <= self._get(index, FAILED_AT):
                return False  # it was under way when another process noted the same failure
            self._set(index, PAUSE, 2 * pause or self._first_pause_s)
            self._set(index, RETRY_AT, now + self._get(index, PAUSE))
            self._set(index, FAILED_AT, now)
            return not pause

    def now(self) -> float:
        return self._clock()

    @property
    def waited_s(self) -> float:
        """What failures have cost so far."""
        return self._waited[0]

    @property
    def _is_spent(self) -> bool:
        return self._waited[0] > WAITING_S

    def _get(self, index: int, part: int) -> float:
        return self._switches[3 * index + part]

    def _set(self, index: int, part: int, value: float) -> None:
        self._switches[3 * index + part] = value
