"""How long a run may wait in vain for its servers, and which of them have used that up."""

import multiprocessing

WAITING_S = 8.0  # in a whole run, over all its ranks and servers; with what is not counted to the millisecond, below 10
LEAST_S = 0.005  # a healthy server answers within, so that shorter waits would tell nothing


class Patience:
    """The waits that a rank has left for each of `count` servers, in memory that forked processes share.

    The ranks of a run wait for each other, in the worst case for one after the other, so that each has an equal share of
    WAITING_S. A wait may take half of what is left of it, so that something is left as long as waits are worth it; and one
    server may take half of the share, so that it does not use up that of the others. Beyond, it is given up, for good. What a
    server that is asked outside of a batch costs is nothing (`client.py: RedisByteCache._probe`).
    """

    def __init__(self, count: int, *, num_ranks: int) -> None:
        self._share_s = WAITING_S / num_ranks
        self._most_s = self._share_s / min(count, 2)  # for one server
        self._lock = multiprocessing.Lock()
        self._costs = multiprocessing.RawArray("d", count)
        self._until = multiprocessing.RawValue("d", 0.0)  # when the last of them ended
        self._given_up = multiprocessing.RawArray("b", count)

    def left_s(self, index: int) -> float:
        """How long a wait for a server may take; 0 where it is given up."""
        return 0.0 if self._given_up[index] else max(LEAST_S, self._worth_s(index))

    def spend(self, index: int, *, since: float, until: float) -> bool:
        """Note a wait in vain; time that several processes waited at once counts once. Whether it makes us give up the server."""
        with self._lock:
            self._costs[index] += max(0.0, until - max(since, self._until.value))
            self._until.value = max(until, self._until.value)
            if self._given_up[index] or self._worth_s(index) >= LEAST_S:
                return False
            self._given_up[index] = True
            return True

    def spent_s(self, index: int) -> float:
        """What waiting in vain for a server has cost this rank so far."""
        return self._costs[index]

    def _worth_s(self, index: int) -> float:
        return min((self._share_s - sum(self._costs)) / 2, self._most_s - self._costs[index])
