"""The newest records of a run that another process writes."""

import contextlib
import json
from pathlib import Path
from typing import Any

from tinyexp.observability.step_log import FILE

TAIL_BYTES = 16384  # of a long file, in which to begin


class StepFollower:
    """Reads `metrics.jsonl` of a run folder as it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._position: int | None = None  # of the first byte that is not read

    def poll(self, first_step: int) -> list[dict[str, Any]]:
        """The records from `first_step` on that came since the last call. At first, only the newest of a long file."""
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, 2)
                if self._position is None or self._position > size:  # at first, or the file was begun anew
                    self._position = max(0, size - TAIL_BYTES)
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # the end of a line in which we began
                record = json.loads(line)
                if isinstance(record, dict) and record.get("step", -1) >= first_step:
                    found.append(record)
        return found
