"""A rank's end of the cache: batches of file bytes by key, from memory where it has them."""

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tinyexp.redis_cache.breaker import Breaker
from tinyexp.redis_cache.counters import Counts, SharedCounters
from tinyexp.redis_cache.seal import CHECKSUM_BYTES, opened, sealed
from tinyexp.redis_cache.shards import Shards

if TYPE_CHECKING:
    from redis import Redis

PREFIX = b"tinyexp:1:"  # product, and layout of the values
LARGEST_VALUE_BYTES = 32 * 2**20  # a larger file is read from disk each time
WRITE_BYTES = 4 * 2**20  # of one request, which must be through within the timeout
FULL_S = 60.0  # until a full server is asked again

T = TypeVar("T")

logger = logging.getLogger("tinyexp")


class RedisByteCache:
    """The cache as a data set sees it (`data/byte_cache.py`). Nothing that servers do is an error here: the file is the truth.

    Made in the rank and used there or in the loader workers that are forked from it: each opens connections of its own, and all
    share the counts, and the knowledge of which server is full or does not answer.
    """

    def __init__(self, shards: Shards, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters = SharedCounters()
        self.shards = shards
        self._answering = Breaker(len(shards.servers), clock=clock)
        self._having_room = Breaker(len(shards.servers), first_pause_s=FULL_S, clock=clock)
        self._clients: dict[int, Redis] = {}
        self._process = 0  # whose clients these are

    @property
    def counts(self) -> Counts:
        """Of this rank and its loader workers so far."""
        return self.counters.read()

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes put under each key, or None where there are none (any more), with one request a server."""
        found: list[bytes | None] = [None] * len(keys)
        damaged = 0
        dealt = self._dealt(enumerate(keys))
        # all servers are asked before the first answer is read, so that they work at the same time
        asked = {shard: self._send(shard, [name for _, name in places]) for shard, places in dealt.items()}
        for shard, places in dealt.items():
            for (place, name), value in zip(places, self._receive(shard, asked[shard]), strict=False):
                if isinstance(value, bytes):
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
        clients = self._clients.values() if self._process == os.getpid() else ()
        for client in clients:
            client.close()
        self._clients = {}

    def _put(self, shard: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        from redis.exceptions import OutOfMemoryError

        def send(client: "Redis") -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                for name, value in pairs:
                    pipeline.set(name, sealed(self.shards.seal, name, value))
                return pipeline.execute(raise_on_error=False)

        since = self._having_room.now()
        answers = self._ask(shard, send)
        if answers is None:
            return
        refused = sum(isinstance(answer, OutOfMemoryError) for answer in answers)
        others = [answer for answer in answers if isinstance(answer, Exception) and not isinstance(answer, OutOfMemoryError)]
        self.counters.add(refused=refused, errors=len(others))
        if refused:
            # nothing is ever thrown out, so that a full server stays full: it is asked again, but ever more rarely
            if self._having_room.failed(shard, since=since):
                self._say_once("full", f"the Redis cache's {self._server(shard)} is full; what does not fit is read from disk")
        elif not others:
            self._having_room.succeeded(shard)
        if others:
            self._say_once("error", f"the Redis cache's {self._server(shard)} answered a write with: {others[0]}")

    def _send(self, shard: int, names: Sequence[bytes]) -> Any:
        """The connection on which the values will come; None if the server is to be left alone, or could not be asked."""
        if not self._answering.allows(shard):
            return None
        since = self._answering.now()
        try:
            pool = self._client(shard).connection_pool
            connection = pool.get_connection()
            try:
                connection.send_command("MGET", *names)
            except BaseException:
                pool.release(connection)
                raise
            return connection
        except failures() as error:
            self._note_failure(shard, error, since)
            return None

    def _receive(self, shard: int, connection: Any) -> list[Any]:
        if connection is None:
            return []
        since = self._answering.now()
        try:
            answer = connection.read_response()
        except failures() as error:
            self._note_failure(shard, error, since)
            return []
        finally:
            self._client(shard).connection_pool.release(connection)
        self._answering.succeeded(shard)
        return answer if isinstance(answer, list) else []  # what is no Redis may answer anything

    def _ask(self, shard: int, request: "Callable[[Redis], list[Any]]") -> list[Any] | None:
        """The answer to a request; None if it failed, or if the server is to be left alone at the moment."""
        if not self._answering.allows(shard):
            return None
        since = self._answering.now()
        try:
            answer = request(self._client(shard))
        except failures() as error:
            self._note_failure(shard, error, since)
            return None
        self._answering.succeeded(shard)
        return answer

    def _note_failure(self, shard: int, error: Exception, since: float) -> None:
        self.counters.add(errors=1)
        self._client(shard).connection_pool.disconnect()
        if self._answering.failed(shard, since=since):
            reason = str(error) or type(error).__name__
            self._say_once("error", f"the Redis cache's {self._server(shard)} failed: {reason}; files are read from disk instead")

    def _client(self, shard: int) -> "Redis":
        if self._process != os.getpid():  # the clients are those of the process that this one was forked from
            self._clients, self._process = {}, os.getpid()
        if shard not in self._clients:
            self._clients[shard] = self.shards.servers[shard].connect()
        return self._clients[shard]

    def _dealt(self, items: Iterable[tuple[T, str]]) -> dict[int, list[tuple[T, bytes]]]:
        """Things with their keys, by the server that keeps each key."""
        dealt: dict[int, list[tuple[T, bytes]]] = {}
        for thing, key in items:
            name = PREFIX + key.encode(errors="surrogateescape")
            dealt.setdefault(zlib.crc32(name) % len(self.shards.servers), []).append((thing, name))
        return dealt

    def _server(self, shard: int) -> str:
        return f"server {self.shards.servers[shard]}"

    def _say_once(self, kind: str, message: str) -> None:
        if self.counters.is_first(kind):
            logger.warning("%s; said once, the counts tell the rest", message)


def failures() -> tuple[type[Exception], ...]:
    """What a request may raise. ValueError: what is no Redis may send anything."""
    from redis.exceptions import RedisError

    return RedisError, OSError, ValueError


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
