"""Where a run's figures go, whatever is on the other side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class RecordsLost(Exception):
    """Records that a sink did not keep, and why the last of them was lost."""

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count


class Sink(Protocol):
    """One place that keeps a run's curves. One rank holds it.

    Its methods may raise, and the run goes on without what was missed: one record, or as many as RecordsLost says.
    """

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    def write_step(self, record: Mapping[str, Any]) -> None:
        """Keep the record of one optimizer step, as `metrics.jsonl` has it."""
        ...

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        """Keep the row of one epoch, as `log.txt` has it, after `step` optimizer steps of the run."""
        ...

    def close(self) -> None:
        """Let what is still on its way arrive."""
        ...


def curves(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values, as points of curves: `{prefix}/{name}`. A position is no curve, and null no point."""
    positions = ("step", "epoch", "epoch_step")
    return {
        f"{prefix}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in positions
    }


def known_id(file: Path, *, first_step: int) -> str | None:
    """The id that `file` keeps of a run which goes on from `first_step`; None for one that begins, or that has no id yet."""
    return file.read_text().strip() if first_step > 0 and file.exists() else None
