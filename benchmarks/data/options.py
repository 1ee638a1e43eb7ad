"""What dataloader_cfg.fast_decode and dataloader_cfg.data_format=shards cost or save, in CPU time an image beside the default.

    python -m benchmarks.data.options

JPEGs of 500 x 375 and of 1600 x 1200 pixels, the loader in one process, subjects taking turns; an epoch is one measurement and
the first one of each subject does not count. Ratios are medians of the ratios within a round. Writes
benchmarks/results/data_options.json.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.data.subjects import TRANSFORMS, cfg_of, write_set
from tinyexp.data.shards import pack
from tinyexp.process import Axis

RESULTS = Path(__file__).parents[1] / "results" / "data_options.json"
SIZES = ((500, 375), (1600, 1200))
DEFAULT = "default"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.data.options --rounds {arguments.rounds} --images {arguments.images}"
    }
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            root, shards = Path(folder, "set"), Path(folder, "shards")
            mean_bytes = write_set(root, arguments.images, size)
            pack(root, shards)
            for transform in TRANSFORMS:
                found = measure(subjects(root, shards, transform), arguments.rounds)
                record[f"{size[0]} x {size[1]}, {transform}"] = {"mean_file_bytes": mean_bytes, **found}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    show(record)


def subjects(root: Path, shards: Path, transform: str) -> dict[str, Iterable]:
    default = replace(cfg_of(root, transform), num_workers=0)
    cfgs = {
        DEFAULT: default,
        "fast_decode": replace(default, fast_decode=True),
        "shards": replace(default, data_root=str(shards), data_format="shards"),
    }
    return {name: cfg.build_train(Axis(), num_classes=4, seed=0, device_type="cpu") for name, cfg in cfgs.items()}


def measure(loaders: dict[str, Iterable], rounds: int) -> dict[str, Any]:
    """CPU milliseconds an image of every subject, medians over rounds, and the medians of their ratios to the default."""
    work: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        turns = list(loaders.items())[:: 1 if number % 2 else -1]
        found = {name: cpu_ms_an_image(loader, number) for name, loader in turns}
        for name, cpu_ms in found.items() if number else ():
            work[name].append(cpu_ms)
    ratios = {name: median(one / other for one, other in zip(each, work[DEFAULT], strict=True)) for name, each in work.items()}
    return {"cpu_ms_an_image": {name: median(each) for name, each in work.items()}, "ratios": ratios, "all": work}


def cpu_ms_an_image(loader: Iterable, epoch: int) -> float:
    loader.start_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]  a TrainLoader
    start, count = time.process_time(), 0
    for images, _ in loader:
        count += len(images)
    return (time.process_time() - start) / count * 1e3


def show(record: dict[str, Any]) -> None:
    table = Table(title="CPU ms an image (ratio to the default)")
    for column in ("images, transform", "default", "fast_decode", "shards"):
        table.add_column(column)
    for name, found in record.items():
        if name != "command":
            cells = [f"{found['cpu_ms_an_image'][each]:.2f} (x {found['ratios'][each]:.2f})" for each in found["ratios"]]
            table.add_row(name, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
