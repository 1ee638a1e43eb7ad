"""What a rank's processes, itself and its loader workers, have had of the cache: numbers in memory that they share."""

import multiprocessing
from dataclasses import asdict, astuple, dataclass

FIELDS = ("hits", "misses", "refused", "damaged", "errors", "bytes")
KINDS = ("error", "full")  # of warnings


@dataclass(frozen=True)
class Counts:
    """Reads and writes of the cache; each read that is no hit was served from the file."""

    hits: int = 0
    misses: int = 0  # reads of what it does not have, damaged values and reads that failed or were not tried included
    refused: int = 0  # writes that a full server refused
    damaged: int = 0  # values whose checksum was wrong
    errors: int = 0  # requests, each for up to a batch, that failed: no answer, no connection, or an error for an answer
    bytes: int = 0  # of the hits

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def named(self) -> dict[str, int]:
        return asdict(self)

    def line(self) -> str:
        """`1,234 hits (87.1 %), 183 misses, 0 refused, 0 errors, 123.4 MB from memory`, with damaged ones if any."""
        share = f" ({self.hits / reads:.1%})" if (reads := self.hits + self.misses) else ""
        damaged = f", {self.damaged:,} damaged" if self.damaged else ""
        return (
            f"{self.hits:,} hits{share}, {self.misses:,} misses{damaged}, {self.refused:,} refused, {self.errors:,} errors, "
            f"{self.bytes / 1e6:,.1f} MB from memory"
        )


class SharedCounters:
    """Counts that every process forked from this one adds to."""

    def __init__(self, num_servers: int) -> None:
        self._lock = multiprocessing.Lock()
        self._numbers = multiprocessing.RawArray("q", len(FIELDS))
        self._said = multiprocessing.RawArray("b", len(KINDS) * num_servers)

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._numbers[FIELDS.index(name)] += amount

    def read(self) -> Counts:
        with self._lock:
            return Counts(*self._numbers)

    def is_first(self, kind: str, server: int) -> bool:
        """Whether no process has asked this before for warnings of this kind about this server."""
        with self._lock:
            index = len(KINDS) * server + KINDS.index(kind)
            first, self._said[index] = not self._said[index], True
            return first
