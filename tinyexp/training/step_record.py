"""One record for each optimizer step of the run, over all its ranks, from the rank that writes files."""

import datetime
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tinyexp.accelerators.base import Accelerator
from tinyexp.errors import NonFiniteLoss, PeerFailed
from tinyexp.training.state import TrainState

Observer = Callable[[Mapping[str, Any]], None]
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of what getrusage counts in


class StepRecorder:
    """Times a loop's steps and hands a record of each to an observer. Its clock starts when it is made."""

    def __init__(self, accelerator: Accelerator, observe: Observer | None) -> None:
        """Without an observer, or on a rank that writes nothing, it does nothing."""
        self._accelerator = accelerator
        self._observe = observe if accelerator.is_main else None
        self._since = time.monotonic()
        self._waited_s = accelerator.waited_s or 0.0

    @contextmanager
    def step(self, state: TrainState, num_images: int) -> Iterator[None]:
        """The block takes one step on `num_images` of this replica. One that is refused, for a NaN, has its record too."""
        if self._observe is None:
            yield
            return
        record = {"step": state.step, "epoch": state.epoch, "epoch_step": state.epoch_step}
        try:
            yield
        except (NonFiniteLoss, PeerFailed):
            self._observe(record | self._figures(state, num_images))
            raise
        self._observe(record | self._figures(state, num_images))

    def _figures(self, state: TrainState, num_images: int) -> dict[str, Any]:
        """From the end of the step before to now, and what the ranks agreed on."""
        now, waited_s = time.monotonic(), self._accelerator.waited_s
        step_s = now - self._since
        figures = {
            "loss": state.verdict.loss,
            "lr": state.lr,
            "images_per_s": num_images * self._accelerator.replica.size / step_s,
            "step_s": step_s,
            "data_s": state.verdict.data_s,
            "link_share": None if waited_s is None else (waited_s - self._waited_s) / step_s,
            "peak_memory_bytes": _peak_memory_bytes(self._accelerator.device),
            "time": datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        }
        self._since, self._waited_s = now, waited_s or 0.0
        return figures | ({"gradient": math.nan} if state.verdict.rank_of_bad_gradient is not None else {})


def _peak_memory_bytes(device: torch.device) -> int:
    """The most that this rank has held so far: of its GPU, as torch counts it, or of the machine, as the kernel does."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
