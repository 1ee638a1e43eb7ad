"""metrics.jsonl: one strictly valid JSON object for each optimizer step of the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyexp.observability.growing_file import GrowingFile
from tinyexp.observability.log import strict_json

FILE = "metrics.jsonl"


class StepLog:
    """Appends a line a step, which other processes can read at once. One rank holds it.

    A line is handed to the operating system whole, but not forced to disk: it outlives the process, not the machine.
    """

    name = FILE

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Lines of steps before `first_step` stay. Later ones, which an interrupted run may have written, are dropped, because
        those steps come again; so is a line that was never finished."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._file = GrowingFile(self.path, end=_end_of_lines_before(self.path, first_step))

    def write_step(self, record: Mapping[str, Any]) -> None:
        """Raises: OSError where the line cannot be written; then nothing of it is in the file."""
        self._file.write(strict_json(record).encode() + b"\n")

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        """Epochs have log.txt."""

    def close(self) -> None:
        self._file.close()


def _end_of_lines_before(path: Path, first_step: int) -> int:
    """Bytes of the leading whole lines whose steps are below `first_step`."""
    end = 0
    if not path.exists():
        return end
    with open(path, "rb") as file:
        for line in file:
            try:
                is_kept = line.endswith(b"\n") and json.loads(line)["step"] < first_step
            except (ValueError, TypeError, KeyError):  # cut off, or not ours
                is_kept = False
            if not is_kept:
                break
            end += len(line)
    return end
