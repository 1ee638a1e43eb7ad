"""What a loop measured, averaged over steps and replicas, and its console lines in the form of the official code."""

import datetime
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from tinyexp.accelerators.base import Accelerator
from tinyexp.streams import own_file
from tinyexp.training.meters import Meter

PRINT_EVERY = 10  # steps between two console lines, as the official engine

T = TypeVar("T")


class Metrics:
    """Meters by name. `averages` sums over the replicas; nothing else communicates."""

    def __init__(self, accelerator: Accelerator, meters: dict[str, Meter] | None = None) -> None:
        """`meters` of an earlier part of the same loop are continued, in place."""
        self._accelerator = accelerator
        self._meters = {} if meters is None else meters
        self.data_s = 0.0  # that the loop has waited for the batch at hand

    def add(self, weight: float = 1.0, **values: float) -> None:
        for name, value in values.items():
            self._meters.setdefault(name, Meter()).add(value, weight)

    def averages(self) -> dict[str, float]:
        """Weighted means over all steps and replicas. Every rank must call it, with the same names."""
        sums = torch.tensor([[meter.total, meter.weight] for meter in self._meters.values()], dtype=torch.float64)
        sums = self._accelerator.reduce(sums)
        return {name: (total / weight).item() for name, (total, weight) in zip(self._meters, sums, strict=True)}

    def progress(self, batches: Iterable[T], num_batches: int, header: str, *, done: int = 0) -> Iterator[T]:
        """Yield the batches; every ten steps a line of this rank goes to its log, and the main rank prints its own, and at the
        end the total time. `done` of them came earlier."""
        step_time, data_time = Meter(), Meter()
        start = last = time.monotonic()
        index = done
        for index, batch in enumerate(batches, start=done + 1):
            self.data_s = time.monotonic() - last
            data_time.add(self.data_s)
            yield batch
            step_time.add(time.monotonic() - last)
            last = time.monotonic()
            if (index - 1) % PRINT_EVERY == 0 or index == num_batches:
                line = self._line(header, index - 1, num_batches, step_time, data_time)
                own_file.info(line)
                if self._accelerator.is_main:
                    print(line, flush=True)
        if self._accelerator.is_main:
            taken = last - start
            print(f"{header} Total time: {_clock(taken)} ({taken / max(1, index - done):.4f} s / it)", flush=True)

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
