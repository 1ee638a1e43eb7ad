"""status.json: what a run is doing now, for whoever watches it. `metrics.jsonl` has the rest."""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tinyexp.observability.log import write_summary

FILE = "status.json"
ENDED = ("finished", "stopped")  # the phases after which nothing comes


@dataclass(frozen=True)
class Status:
    """Where a run is. Steps and epochs are counted from 0."""

    epoch: int
    epochs: int
    steps_in_epoch: int
    steps: int  # of the whole run, when it ends
    first_step: int  # that this command takes
    phase: str = "training"  # and evaluating in turn; at last finished or stopped
    top1: float | None = None  # percent, of the newest evaluation

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    def write(self, folder: Path) -> None:
        """Replace the file in the run folder, whole."""
        write_summary(folder, asdict(self), name=FILE)

    @staticmethod
    def written_at(folder: Path) -> int:
        """When the file was replaced last, in ns; 0 where there is none."""
        try:
            return (folder / FILE).stat().st_mtime_ns
        except OSError:
            return 0

    @classmethod
    def read(cls, folder: Path) -> "Status | None":
        """What the run has written last; None where there is nothing, or nothing of this version."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            found.pop("nonfinite", None)
            return cls(**found)
        return None
