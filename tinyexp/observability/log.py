"""The run folder's record: one JSON object an epoch in log.txt, and a summary at the end."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


class RunLog:
    """Appends to `log.txt` in the form of the official code. One rank holds it."""

    def __init__(self, folder: Path, *, first_epoch: int = 0) -> None:
        """Lines of epochs before `first_epoch` stay; later ones, which an interrupted run may have written, come again."""
        self.path = folder / "log.txt"
        folder.mkdir(parents=True, exist_ok=True)
        kept = "".join(strict_json(row) + "\n" for row in self.rows() if row["epoch"] < first_epoch)
        _replace(self.path, kept)

    def write_epoch(self, row: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(strict_json(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """The lines so far, without one that a killed process has left unfinished."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


def write_summary(folder: Path, summary: Mapping[str, Any], *, name: str = "summary.json") -> Path:
    """Write one JSON object into the run folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    _replace(path, strict_json(summary, indent=2) + "\n")
    return path


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def show_summary(title: str, summary: Mapping[str, Any]) -> None:
    """Print a training run's summary as a table; a run that had nothing left to do shows nothing."""
    if summary["top1"] is None:
        return
    table = Table(title=title, show_header=False)
    table.add_row("top-1", f"{summary['top1']:.2f} % (best {summary['max_accuracy']:.2f} %)")
    if summary["top1_ema"] is not None:
        table.add_row("top-1, averaged weights", f"{summary['top1_ema']:.2f} %")
    table.add_row("mesh", "dp={dp} tp={tp}".format(**summary["mesh"]))
    speed = f"{summary['steps']} steps"
    if summary["images_per_s"] is not None:  # of the steps that this command took
        speed += f", {summary['train_seconds']:.0f} s, {summary['images_per_s']:.0f} images/s"
    table.add_row("training", speed)
    if cache := summary.get("cache"):
        table.add_row("cache", "{hits:,} hits, {misses:,} misses, {refused:,} refused, {errors:,} errors".format(**cache))
    for split in ("train", "val"):
        if (bad := summary.get(f"unreadable_{split}")) and bad["count"]:
            table.add_row(f"unreadable in {split}", "\n".join([f"{bad['count']} files, skipped", *bad["files"][:5]]))
    for key in ("checkpoint", "log", "curves"):
        table.add_row(key, str(summary[key]))
    Console().print(table)


def strict_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON that any reader accepts: a number that is not finite becomes null and is named under `nonfinite`."""
    nonfinite = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    clean = {name: None if name in nonfinite else value for name, value in values.items()}
    if nonfinite:
        clean["nonfinite"] = nonfinite
    return json.dumps(clean, indent=indent, allow_nan=False)
