"""Images a second from files to batches: page cache, a slow disk, and the Redis cache, beside torchvision's and timm's loaders.

    python -m benchmarks.data.run

The same 500 x 375 JPEGs, the same transform objects, two loader processes each, taking turns; an epoch is one measurement and
the first one of each subject, in which its workers start, does not count. The slow disk is a folder whose files this process
and its workers open through functions that sleep first: 1 ms to ask for size and time, 30 ms to open, 20 MB/s to read, for each
loader process. Ratios are medians of the ratios within a round; CPU milliseconds an image, of the loader and its processes, do
not depend on what else the machine does. Writes benchmarks/results/data.json.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.data.cache import SHARDS, cost_of_a_hit, fill_curve, memory_of_keys, running_cache
from benchmarks.data.subjects import BATCH, LOADERS, TRANSFORMS, WORKERS, ours, throttle, write_set

RESULTS = Path(__file__).parents[1] / "results" / "data.json"
RATIOS = (
    ("ours, page cache", "torchvision, page cache"),
    ("ours, page cache", "timm, page cache"),
    ("ours, warm Redis over slow disk", "ours, slow disk"),
    ("ours, warm Redis over slow disk", "ours, page cache"),
    ("ours, cold Redis over slow disk", "ours, slow disk"),
    ("ours, slow disk", "torchvision, slow disk"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=320)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.data.run --rounds {arguments.rounds} --images {arguments.images}",
        "cores": len(os.sched_getaffinity(0)),
        "workers": WORKERS,
        "batch": BATCH,
        "shards": SHARDS,
        "cost_of_a_hit": cost_of_a_hit(),
        "memory": memory_of_keys(),
        "fill_curve": fill_curve(),
    }
    with tempfile.TemporaryDirectory() as folder:
        root, slow = Path(folder) / "set", Path(folder) / "slow"
        record["mean_file_bytes"] = write_set(root, arguments.images)
        slow.symlink_to(root)
        throttle(slow)
        for transform in TRANSFORMS:
            record[transform] = measure(root, slow, transform, arguments.rounds)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    show(record)


def measure(root: Path, slow: Path, transform: str, rounds: int) -> dict[str, Any]:
    """Images a second of every subject in every round, and the medians of their ratios."""
    with running_cache() as (warm, _):
        subjects = {f"{name}, page cache": build(root, transform) for name, build in LOADERS.items()}
        subjects |= {f"{name}, slow disk": LOADERS[name](slow, transform) for name in ("torchvision", "ours")}
        subjects["ours, warm Redis over slow disk"] = ours(slow, transform, warm)
        speeds: dict[str, list[float]] = {name: [] for name in (*subjects, "ours, cold Redis over slow disk")}
        work: dict[str, list[float]] = {name: [] for name in speeds}
        for number in range(rounds + 1):
            turns = list(subjects.items())[:: 1 if number % 2 else -1]
            found = {name: epoch_of(loader, number) for name, loader in turns}
            with running_cache() as (cold, _):
                loader = ours(slow, transform, cold)
                found["ours, cold Redis over slow disk"] = epoch_of(loader, number)
                del loader
            for name, (speed, cpu_ms) in found.items() if number else ():
                speeds[name].append(speed)
                work[name].append(cpu_ms)
    return {
        "images_per_s": {name: median(each) for name, each in speeds.items()},
        "cpu_ms_an_image": {name: median(each) for name, each in work.items()},
        "ratios": {f"{name} / {other}": ratio(speeds, name, other) for name, other in RATIOS},
        "cpu_ratios": {f"{name} / {other}": ratio(work, name, other) for name, other in RATIOS},
        "all": {"images_per_s": speeds, "cpu_ms_an_image": work},
    }


def ratio(values: dict[str, list[float]], name: str, other: str) -> float:
    return median(one / another for one, another in zip(values[name], values[other], strict=True))


def epoch_of(loader: Iterable, epoch: int) -> tuple[float, float]:
    """Images a second, and CPU milliseconds an image."""
    if hasattr(loader, "start_epoch"):
        loader.start_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
    start, cpu_start, count = time.perf_counter(), cpu_seconds(), 0
    for images, _ in loader:
        count += len(images)
    return count / (time.perf_counter() - start), (cpu_seconds() - cpu_start) / count * 1e3


def cpu_seconds() -> float:
    """Of this process and the loader processes that it has at the moment; those of the other subjects stand still."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, parent, *fields = stat.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid():
                ticks += int(fields[9]) + int(fields[10])
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


def show(record: dict[str, Any]) -> None:
    for transform in TRANSFORMS:
        table = Table(title=f"{transform} transform, {WORKERS} workers on {record['cores']} cores")
        table.add_column("subject, or ratio of two")
        table.add_column("images/s", justify="right")
        table.add_column("CPU ms an image", justify="right")
        found = record[transform]
        for name, speed in found["images_per_s"].items():
            table.add_row(name, f"{speed:.1f}", f"{found['cpu_ms_an_image'][name]:.2f}")
        for name, each in found["ratios"].items():
            table.add_row(name, f"x {each:.3f}", f"x {found['cpu_ratios'][name]:.3f}")
        Console(width=110).print(table)
    print(json.dumps({name: record[name] for name in ("cost_of_a_hit", "memory", "fill_curve")}, indent=1))


if __name__ == "__main__":
    main()
