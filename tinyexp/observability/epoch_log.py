"""log.txt: one strictly valid JSON object for each epoch of the run, in the form of the official code."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyexp.observability.growing_file import GrowingFile
from tinyexp.observability.log import replace_file, strict_json
from tinyexp.observability.sinks import RecordsLost

FILE = "log.txt"


class EpochLog:
    """Appends a line an epoch, forced to disk. One rank holds it.

    A line that the disk does not take is kept, and written again with that of the next epoch and at the end.
    """

    name = FILE

    def __init__(self, folder: Path, *, first_epoch: int) -> None:
        """Lines of epochs before `first_epoch` stay; later ones, which an interrupted run may have written, come again."""
        self.path = folder / FILE
        self._first_epoch = first_epoch
        self._is_begun = False
        self._late: list[bytes] = []  # lines that have yet to be written
        with contextlib.suppress(OSError):  # tried again with the first line, which says so then
            self._begin()

    def write_step(self, record: Mapping[str, Any]) -> None:
        """Steps have metrics.jsonl."""

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        """Raises: RecordsLost with the reason where the line could not be written; none is lost yet, and so it counts 0."""
        self._late.append(_line(row))
        try:
            self._write()
        except OSError as error:
            raise RecordsLost(0, f"{error}; each line is tried again with the next") from None

    def close(self) -> None:
        """Raises: RecordsLost with the number of lines that are lost now."""
        try:
            self._write()
        except OSError as error:
            raise RecordsLost(len(self._late), str(error)) from None

    def _begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in epoch_rows(self.path.parent) if isinstance(row.get("epoch"), int)]
        replace_file(self.path, b"".join(_line(row) for row in rows if row["epoch"] < self._first_epoch))
        self._is_begun = True

    def _write(self) -> None:
        if not self._late:
            return
        if not self._is_begun:
            self._begin()
        with GrowingFile(self.path) as file:
            file.write(b"".join(self._late), sync=True)
        self._late.clear()


def epoch_rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run folder's log.txt so far, without what is no row, as one that a killed process has left unfinished."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return [row for row in found if isinstance(row, dict)]


def _line(row: Mapping[str, Any]) -> bytes:
    return f"{strict_json(row)}\n".encode()
