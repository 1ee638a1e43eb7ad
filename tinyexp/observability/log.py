"""The files that say in a few words what a run has reached, and the table that closes it."""

import contextlib
import json
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tinyexp.observability.table import add_plain_row, plain_table

logger = logging.getLogger("tinyexp")


def write_summary(folder: Path, summary: Mapping[str, Any], *, name: str = "summary.json") -> Path:
    """Write one JSON object into the run folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    replace_file(path, f"{strict_json(summary, indent=2)}\n".encode())
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises: OSError; then nothing is left beside the file that was there."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def dispensable(path: Path) -> Iterator[None]:
    """An OSError of the block, which writes a file that must not end a run whose work is saved, becomes a warning."""
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s; the run goes on without it", path, error.strerror or error)


def show_summary(title: str, summary: Mapping[str, Any]) -> None:
    """Print a training run's summary as a table; a run that had nothing left to do shows nothing."""
    if summary["top1"] is None:
        return
    table = plain_table(("", ""), title=title, show_header=False)
    table.columns[0].no_wrap = True
    add_plain_row(table, "top-1", f"{summary['top1']:.2f} % (best {summary['max_accuracy']:.2f} %)")
    if summary["top1_ema"] is not None:
        add_plain_row(table, "top-1, averaged weights", f"{summary['top1_ema']:.2f} %")
    add_plain_row(table, "mesh", "dp={dp} tp={tp}".format(**summary["mesh"]))
    speed = f"{summary['steps']} steps"
    if summary["images_per_s"] is not None:  # of the steps that this command took
        speed += f", {summary['train_seconds']:.0f} s, {summary['images_per_s']:.0f} images/s"
        if first_step := summary.get("first_step"):
            speed += f" since step {first_step}"
    add_plain_row(table, "training", speed)
    if cache := summary.get("cache"):
        add_plain_row(table, "cache", "{hits:,} hits, {misses:,} misses, {refused:,} refused, {errors:,} errors".format(**cache))
    for split in ("train", "val"):
        if (bad := summary.get(f"unreadable_{split}")) and bad["count"]:
            add_plain_row(table, f"unreadable in {split}", "\n".join([f"{bad['count']} files, skipped", *bad["files"][:5]]))
    for key in ("checkpoint", "log", "metrics", "curves", "report"):
        if summary.get(key):
            add_plain_row(table, key, str(summary[key]))
    if summary.get("tensorboard"):
        add_plain_row(table, "tensorboard", f"tensorboard --logdir {shlex.quote(summary['tensorboard'])}")
    if lost := summary.get("records_lost"):
        add_plain_row(table, "records lost", "\n".join(f"{name}: {count:,}" for name, count in lost.items()))
    Console().print(table)


def strict_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON that any reader accepts: a number that is not finite becomes null and is named under `nonfinite`."""
    nonfinite = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    clean = {name: None if name in nonfinite else value for name, value in values.items()}
    if nonfinite:
        clean["nonfinite"] = nonfinite
    return json.dumps(clean, indent=indent, allow_nan=False)
