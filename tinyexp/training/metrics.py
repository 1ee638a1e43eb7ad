"""What a loop measured, averaged over steps and replicas, and its console lines in the form of the official code."""

import datetime
import time
from collections import deque
from collections.abc import Iterable, Iterator
from statistics import median
from typing import TypeVar

import torch

from tinyexp.accelerators.base import Accelerator

WINDOW = 20  # values of a console line's median, as the official logger
PRINT_EVERY = 10  # steps between two console lines, as the official engine

T = TypeVar("T")


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

    @property
    def average(self) -> float:
        return self.total / self.weight if self.weight else float("nan")

    @property
    def median(self) -> float:
        return median(self.recent) if self.recent else float("nan")


class Metrics:
    """Meters by name. `averages` sums over the replicas; nothing else communicates."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._meters: dict[str, Meter] = {}

    def add(self, weight: float = 1.0, **values: float) -> None:
        for name, value in values.items():
            self._meters.setdefault(name, Meter()).add(value, weight)

    def averages(self) -> dict[str, float]:
        """Weighted means over all steps and replicas. Every rank must call it, with the same names."""
        sums = torch.tensor([[meter.total, meter.weight] for meter in self._meters.values()], dtype=torch.float64)
        sums = self._accelerator.reduce(sums)
        return {name: (total / weight).item() for name, (total, weight) in zip(self._meters, sums, strict=True)}

    def progress(self, batches: Iterable[T], num_batches: int, header: str) -> Iterator[T]:
        """Yield the batches; the main rank prints a line every ten steps and the total time."""
        step_time, data_time = Meter(), Meter()
        start = last = time.monotonic()
        index = 0
        for index, batch in enumerate(batches, start=1):
            data_time.add(time.monotonic() - last)
            yield batch
            step_time.add(time.monotonic() - last)
            last = time.monotonic()
            if self._accelerator.is_main and ((index - 1) % PRINT_EVERY == 0 or index == num_batches):
                print(self._line(header, index - 1, num_batches, step_time, data_time), flush=True)
        if self._accelerator.is_main:
            taken = last - start
            print(f"{header} Total time: {_clock(taken)} ({taken / max(1, index):.4f} s / it)", flush=True)

    def _line(self, header: str, index: int, num_batches: int, step_time: Meter, data_time: Meter) -> str:
        parts = [header, f"[{index:{len(str(num_batches))}d}/{num_batches}]"]
        parts.append(f"eta: {_clock(step_time.average * (num_batches - index - 1))}")
        for name, meter in self._meters.items():
            parts.append(
                f"{name}: {meter.recent[-1]:.6f}" if name == "lr" else f"{name}: {meter.median:.4f} ({meter.average:.4f})"
            )
        parts += [f"time: {step_time.median:.4f}", f"data: {data_time.median:.4f}"]
        if self._accelerator.device.type == "cuda":
            parts.append(f"max mem: {torch.cuda.max_memory_allocated() / 2**20:.0f}")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))
