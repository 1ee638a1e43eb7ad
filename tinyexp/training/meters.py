"""One quantity of a loop: its recent values and its weighted mean."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

WINDOW = 20  # values of a console line's median, as the official logger


class Meter:
    """One quantity: its recent values, its weighted sum and its weight."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.total = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.recent.append(value)
        self.total += value * weight
        self.weight += weight

    def plain(self) -> list[Any]:
        """What `from_plain` makes the meter of again."""
        return [list(self.recent), self.total, self.weight]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> "Meter":
        meter = cls()
        recent, meter.total, meter.weight = plain
        meter.recent.extend(recent)
        return meter

    @property
    def average(self) -> float:
        return self.total / self.weight if self.weight else float("nan")

    @property
    def median(self) -> float:
        return median(self.recent) if self.recent else float("nan")
