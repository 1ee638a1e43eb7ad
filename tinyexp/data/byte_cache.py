"""What the data sets ask of a cache. The caches themselves live elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class ByteCache(Protocol):
    """File bytes, kept in memory across epochs and processes. The file stays the truth: either method may do nothing."""

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """For each key the bytes put under it, verbatim, or None where there are none (any more)."""
        ...

    def put_many(self, values: Mapping[str, bytes]) -> None:
        """Keep the values under their keys if there is room."""
        ...
