"""A rank's end of the cache: batches of file bytes by key, from memory where it has them."""

import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tinyexp.redis_cache.breaker import Breaker
from tinyexp.redis_cache.counters import Counts, SharedCounters
from tinyexp.redis_cache.link import Link, failures
from tinyexp.redis_cache.patience import LEAST_S, Patience
from tinyexp.redis_cache.seal import CHECKSUM_BYTES, opened, sealed
from tinyexp.redis_cache.shards import Shards

PREFIX = b"tinyexp:1:"  # product, and layout of the values
LARGEST_VALUE_BYTES = 32 * 2**20  # a larger file is read from disk each time
WRITE_BYTES = 4 * 2**20  # of one request, which must be through within the timeout
LARGEST_PAUSE_S = 60.0  # until a server that has failed is asked again, outside of any batch
FULL_S = 60.0  # until a full server is asked again

T = TypeVar("T")

logger = logging.getLogger("tinyexp")


class RedisByteCache:
    """The cache as a data set sees it (`data/byte_cache.py`). Nothing that servers do is an error here: the file is the truth.

    Made in the rank and used there or in the loader workers that are forked from it: each opens connections of its own, and all
    share the counts, and the knowledge of which server is full or does not answer.
    """

    def __init__(self, shards: Shards, *, num_ranks: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """num_ranks: of the run, which wait for each other."""
        count = len(shards.servers)
        self.counters = SharedCounters(count)
        self.shards = shards
        self._now = clock
        self._answering = Breaker(count, largest_pause_s=LARGEST_PAUSE_S, clock=clock)
        self._having_room = Breaker(count, first_pause_s=FULL_S, clock=clock)
        self._patience = Patience(count, num_ranks=num_ranks)
        self._links: dict[int, Link] = {}
        self._process = 0  # whose links these are

    @property
    def counts(self) -> Counts:
        """Of this rank and its loader workers so far."""
        return self.counters.read()

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes put under each key, or None where there are none (any more), with one request a server."""
        found: list[bytes | None] = [None] * len(keys)
        damaged = 0
        dealt = self._dealt(enumerate(keys))
        # all servers are asked before the first answer is read: they work, and if need be are waited for, at the same time
        begin = self._now()
        asked = {shard: [("MGET", *(name for _, name in places))] for shard, places in dealt.items()}
        asked = {shard: commands for shard, commands in asked.items() if self._send(shard, commands, begin)}
        begin = self._now()
        for shard, commands in asked.items():
            [values] = self._receive(shard, len(commands), begin) or [None]
            if isinstance(values, Exception):
                self._note_failure(shard, values, self._now())
            for (place, name), value in zip(dealt[shard], values if isinstance(values, list) else [], strict=False):
                if isinstance(value, bytes):  # what is no Redis may answer anything
                    found[place] = opened(self.shards.seal, name, value)
                    damaged += found[place] is None
        hits = [value for value in found if value is not None]
        self.counters.add(hits=len(hits), misses=len(found) - len(hits), bytes=sum(map(len, hits)), damaged=damaged)
        return found

    def put_many(self, values: Mapping[str, bytes]) -> None:
        """Keep the values under their keys where there is room, with one request a server for every few megabytes."""
        fitting = {key: value for key, value in values.items() if len(value) + CHECKSUM_BYTES <= LARGEST_VALUE_BYTES}
        for shard, items in self._dealt((value, key) for key, value in fitting.items()).items():
            for pairs in _parts([(name, value) for value, name in items]):
                if self._having_room.allows(shard):
                    self._put(shard, pairs)

    def close(self) -> None:
        """Close this process's connections."""
        links = self._links.values() if self._process == os.getpid() else ()
        for link in links:
            link.close()
        self._links = {}

    def _put(self, shard: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        from redis.exceptions import OutOfMemoryError

        since = self._now()
        commands = [("SET", name, sealed(self.shards.seal, name, value)) for name, value in pairs]
        if not self._send(shard, commands, since):
            return
        answers = self._receive(shard, len(commands), self._now())
        if answers is None:
            return
        refused = sum(isinstance(answer, OutOfMemoryError) for answer in answers)
        others = [answer for answer in answers if isinstance(answer, Exception) and not isinstance(answer, OutOfMemoryError)]
        self.counters.add(refused=refused, errors=len(others))
        if refused:
            # nothing is ever thrown out, so that a full server stays full: it is asked again, but ever more rarely
            if self._having_room.failed(shard, since=since):
                self._say_once("full", shard, "is full; what does not fit is read from disk")
        elif not others:
            self._having_room.succeeded(shard)
        if others:
            self._say_once("error", shard, f"answered a write with: {others[0]}")

    def _send(self, shard: int, commands: Sequence[Sequence[Any]], begin: float) -> bool:
        """Whether a server is to be asked now, and the commands are on their way to it. begin: of the batch."""
        if not self._is_usable(shard):
            return False
        since = self._now()
        within_s = begin + self._patience.left_s(shard) - since
        if within_s <= 0:  # others, which do not answer, have taken the time of this batch
            return False
        try:
            self._link(shard).send(commands, within_s=min(within_s, self.shards.servers[shard].timeout_s))
        except failures() as error:
            self._note_failure(shard, error, since)
            return False
        return True

    def _receive(self, shard: int, count: int, begin: float) -> list[Any] | None:
        """The answers; None where the server failed. begin: since when the servers of this batch are waited for."""
        since = self._now()
        if not self._answering.is_fine(shard):  # another process has waited for it in vain, while this one waited for others
            self._link(shard).drop()
            return None
        patience_s = min(max(LEAST_S, self._patience.left_s(shard)), self.shards.servers[shard].timeout_s)
        try:
            answers = self._link(shard).answers(count, wait_s=max(0.0, begin + patience_s - since), stall_s=patience_s)
        except failures() as error:
            self._note_failure(shard, error, since)
            return None
        self._answering.succeeded(shard)
        return answers

    def _is_usable(self, shard: int) -> bool:
        if not self._patience.left_s(shard):
            return False
        if not self._answering.is_fine(shard) and self._answering.takes_turn(shard):
            threading.Thread(target=self._probe, args=(shard,), name="redis-probe", daemon=True).start()
        return self._answering.is_fine(shard)

    def _probe(self, shard: int) -> None:
        """Find out whether a server that has failed answers again, while nobody waits for it."""
        since, client = self._now(), self.shards.servers[shard].connect()
        try:
            client.ping()
        except failures():
            self._answering.failed(shard, since=since)
        else:
            self._answering.succeeded(shard)
        finally:
            client.close()

    def _note_failure(self, shard: int, error: Exception, since: float) -> None:
        self.counters.add(errors=1)
        self._link(shard).drop()
        is_news = self._answering.failed(shard, since=since)
        if self._patience.spend(shard, since=since, until=self._now()):
            logger.warning(
                "the Redis cache's server %s is given up, after %.2g s of waiting in vain: its files are read from disk for the "
                "rest of this run",
                self.shards.servers[shard],
                self._patience.spent_s(shard),
            )
        elif is_news:
            reason = str(error) or type(error).__name__
            self._say_once("error", shard, f"failed: {reason}; until it answers again its files are read from disk")

    def _link(self, shard: int) -> Link:
        if self._process != os.getpid():  # the links are those of the process that this one was forked from
            self._links, self._process = {}, os.getpid()
        if shard not in self._links:
            self._links[shard] = Link(self.shards.servers[shard])
        return self._links[shard]

    def _dealt(self, items: Iterable[tuple[T, str]]) -> dict[int, list[tuple[T, bytes]]]:
        """Things with their keys, by the server that keeps each key."""
        dealt: dict[int, list[tuple[T, bytes]]] = {}
        for thing, key in items:
            name = PREFIX + key.encode(errors="surrogateescape")
            dealt.setdefault(zlib.crc32(name) % len(self.shards.servers), []).append((thing, name))
        return dealt

    def _say_once(self, kind: str, shard: int, what: str) -> None:
        if self.counters.is_first(kind, shard):
            server = self.shards.servers[shard]
            logger.warning("the Redis cache's server %s %s; said once, the counts tell the rest", server, what)


def _parts(pairs: Sequence[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The pairs in their order, as many at once as WRITE_BYTES hold."""
    part, size = [], 0
    for name, value in pairs:
        if part and size + len(value) > WRITE_BYTES:
            yield part
            part, size = [], 0
        part.append((name, value))
        size += len(value)
    if part:
        yield part
