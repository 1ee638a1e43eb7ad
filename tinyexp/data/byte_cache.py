"""What the data sets ask of a cache. The caches themselves live elsewhere."""

from typing import Protocol


class ByteCache(Protocol):
    """File bytes, kept in memory across epochs and processes. The file stays the truth: either method may do nothing."""

    def get(self, key: str) -> bytes | None:
        """The bytes put under `key`, or None where there are none (any more)."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep `value` under `key` if there is room."""
        ...
