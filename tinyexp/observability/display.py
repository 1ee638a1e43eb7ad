"""A run as a few lines at the bottom of a terminal."""

import datetime
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tinyexp.observability.follow import StepFollower
from tinyexp.observability.status import Status

RECENT = 20  # records that a figure is the mean of


class RunDisplay:
    """Reads what a run writes into its folder, and draws it. What an earlier run has left there is not drawn."""

    def __init__(self, folder: Path, title: str, *, before: int) -> None:
        """before: when the earlier run has last said what it does, `Status.written_at`."""
        self._folder = folder
        self._title = title
        self._follower = StepFollower(folder)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._begun_at = time.monotonic()
        self._first: tuple[int, float] | None = None  # the step from which the rest is estimated, and when it was seen
        self._before = before
        self.status: Status | None = None  # None: the run has yet to say what it does

    def poll(self) -> None:
        """Read what has come since the last call."""
        if self.status is None and Status.written_at(self._folder) == self._before:
            return
        self.status = Status.read(self._folder) or self.status
        if self.status is None:
            return
        for record in self._follower.poll(self.status.first_step):
            if self._recent and record["step"] <= self._recent[-1]["step"]:  # ranks were started again
                self._recent.clear()
                self._first = None
            self._recent.append(record)
        if self._recent and self._first is None:
            self._first = self._recent[-1]["step"], time.monotonic()

    def draw(self) -> RenderableType:
        """The lines, each of which fits 80 columns."""
        status, record = self.status, self._recent[-1] if self._recent else None
        if status is None:
            return Text("")
        done = record["step"] + 1 if record else status.first_step
        in_epoch = record["epoch_step"] + 1 if record and record["epoch"] == status.epoch else 0
        if status.phase != "training":
            in_epoch = max(in_epoch, min(status.steps_in_epoch, status.steps - status.epoch * status.steps_in_epoch))
        head = Table.grid(expand=True)
        head.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        head.add_column(no_wrap=True, justify="right")
        name = Text.assemble((self._title, "bold"), f"  {status.phase}, epoch {status.epoch} of {status.epochs}")
        head.add_row(name, self._clock(status.steps, done))
        bars = Table.grid(padding=(0, 1), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(no_wrap=True, justify="right")
        bars.add_row("run", ProgressBar(status.steps, done), f"{done:,}/{status.steps:,} steps")
        bars.add_row("epoch", ProgressBar(status.steps_in_epoch, in_epoch), f"{in_epoch:,}/{status.steps_in_epoch:,}")
        return Group(head, bars, *figures(self._recent, status.top1))

    def _clock(self, steps: int, done: int) -> str:
        now = time.monotonic()
        text = f"{_spoken(now - self._begun_at)} gone"
        if self._first is not None and done - 1 > self._first[0] and self._recent:
            first_step, since = self._first
            text += f", {_spoken((now - since) / (done - 1 - first_step) * (steps - done))} left"
        return text


def figures(records: Sequence[dict[str, Any]], top1: float | None) -> list[Text]:
    """Two lines: what the model does, and what it costs. What is null in the newest record is left out.

    Figures are means over the records; of what is told for each second, over their seconds.
    """
    if not records:
        return []
    newest = records[-1]

    def mean(name: str) -> float:
        return fmean(record[name] for record in records if record[name] is not None)

    def each_second(name: str) -> float:
        known = [(record[name], record["step_s"]) for record in records if record[name] is not None]
        return sum(value * seconds for value, seconds in known) / sum(seconds for _, seconds in known)

    learns = ["loss " + ("not finite" if newest["loss"] is None else f"{mean('loss'):.4f}"), f"lr {newest['lr']:.2e}"]
    if top1 is not None:
        learns.append(f"top-1 {top1:.2f} %")
    costs = [
        f"{each_second('images_per_s'):,.0f} images/s",
        f"step {1000 * mean('step_s'):,.0f} ms",
        f"data {1000 * mean('data_s'):,.0f} ms",
    ]
    if newest["link_share"] is not None:
        costs.append(f"link {100 * each_second('link_share'):.0f} %")
    if newest["peak_memory_bytes"] is not None:
        costs.append(f"memory {newest['peak_memory_bytes'] / 2**20:,.0f} MiB")
    return [Text("   ".join(parts), no_wrap=True, overflow="ellipsis") for parts in (learns, costs)]


def _spoken(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))
