"""A training step beside the field's own ways to write it: same model, same batch, same run, taking turns.

    python -m benchmarks.peers.run

Two ranks on this machine, then one process. The peers: Lightning Fabric's ModelParallelStrategy with a hand-written plan, the
layout of PyTorch's tensor-parallel tutorial (stock styles), a hand-written loop around plain collectives that does the
arithmetic of ours, DistributedDataParallel; and in one process timm's own model in a bare loop. Ratios of medians are of images
per second. Writes benchmarks/results/peers.json. Lightning comes with `pip install -e '.[bench]'`.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from benchmarks.peers.subjects import ALONE, TOGETHER, Setting, Step
from tinyexp.launch.local import run_local

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--depth", type=int, default=4, help="blocks of DeiT-S's width on two ranks; one process has all 12")
    parser.add_argument("--batch", type=int, default=8, help="images a rank")
    arguments = parser.parse_args()
    setting = Setting(depth=arguments.depth, batch=arguments.batch)
    whole = replace(setting, depth=12)  # all of DeiT-S, where the tail saves what it saves in a real run
    together = run_local(partial(measure, TOGETHER, setting, arguments.rounds), 2)[0]
    alone = run_local(partial(measure, ALONE, whole, arguments.rounds), 1)[0]
    rows = [*ratios(together, setting, "two ranks", "ddp"), *ratios(alone, whole, "one process", "timm, bare loop")]
    show(rows, f"DeiT-S's width, {setting.depth} blocks, alone 12; {setting.batch} images a rank, float32, one thread a rank")
    RESULTS.write_text(json.dumps({"setting": asdict(setting), "alone": asdict(whole), "rows": rows}, indent=1) + "\n")


def measure(builders: dict[str, Callable[[Setting], Step]], setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each subject, in turns, after two to warm up. Every rank calls it."""
    torch.set_num_threads(1)
    steps = {name: build(setting) for name, build in builders.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            wait()
            start = time.perf_counter()
            step()
            wait()
            if number >= 2:
                taken[name].append(time.perf_counter() - start)
    return taken


def wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def ratios(taken: dict[str, list[float]], setting: Setting, where: str, reference: str) -> list[dict[str, object]]:
    speeds = {name: [setting.images(name) / each for each in seconds] for name, seconds in taken.items()}
    return [
        {
            "where": where,
            "subject": name,
            "reference": reference,
            "ratio": median(own / other for own, other in zip(speeds[name], speeds[reference], strict=True)),
            "step_s": taken[name],
        }
        for name in taken
    ]


def show(rows: list[dict[str, object]], title: str) -> None:
    table = Table(title=title)
    for column in ("where", "subject", "images/s relative to", ""):
        table.add_column(column, justify="left" if column else "right")
    for row in rows:
        table.add_row(str(row["where"]), str(row["subject"]), str(row["reference"]), f"{row['ratio']:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
