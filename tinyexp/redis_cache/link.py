"""One process's connection to one server, whose waits end when the caller says."""

from collections.abc import Sequence
from typing import Any

from tinyexp.redis_cache.shards import Shard


class Link:
    """A connection that is opened when it is first used, and again after `drop`.

    redis-py's pools and clients wait as long as they were told when they were made; here each batch says how long.
    """

    def __init__(self, shard: Shard) -> None:
        self._client = shard.connect()
        self._connection: Any = self._client.connection_pool.make_connection()

    def send(self, commands: Sequence[Sequence[Any]], *, within_s: float) -> None:
        """Send commands whose answers `answers` will give. Raises: one of `failures`."""
        connection = self._connection
        connection.socket_timeout = connection.socket_connect_timeout = within_s
        connection.connect()  # nothing where it is open
        if self._is_stale():
            connection.disconnect()
            connection.connect()
        connection.update_current_socket_timeout(within_s)
        connection.send_packed_command(connection.pack_commands(commands))

    def answers(self, count: int, *, wait_s: float, stall_s: float) -> list[Any]:
        """The answers to `count` commands; one that the server refused is an exception in the list.

        wait_s: until the first byte, stall_s: between bytes. Raises: one of `failures`.
        """
        from redis.exceptions import TimeoutError

        if not self._connection.can_read(wait_s):
            raise TimeoutError("it accepts requests and says nothing")
        return [self._answer(stall_s) for _ in range(count)]

    def drop(self) -> None:
        """Close the connection, on which an answer may still come."""
        self._connection.disconnect()

    def close(self) -> None:
        self.drop()
        self._client.close()

    def _answer(self, stall_s: float) -> Any:
        from redis.exceptions import ResponseError

        try:
            return self._connection.read_response(timeout=stall_s)
        except ResponseError as error:
            return error

    def _is_stale(self) -> bool:
        """Whether the other end has closed it, or said what nobody asked for."""
        try:
            return self._connection.can_read(0)
        except failures():
            return True


def failures() -> tuple[type[Exception], ...]:
    """What a request may raise. ValueError: what is no Redis may send anything."""
    from redis.exceptions import RedisError

    return RedisError, OSError, ValueError
