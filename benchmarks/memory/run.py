"""What a rank keeps for backward, an image of the mesh, beside the layout of stock PyTorch styles; and what recomputing costs.

    python -m benchmarks.memory.run

DeiT-S on two ranks, bf16 autocast. Bytes are counted tensor by tensor (`tinyexp/bench/memory.py`). The cost of recomputation is
the median ratio of a whole step to the same layout without it, the subjects taking turns. Writes benchmarks/results/memory.json.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.link.stock_layout import build_in_stock_layout
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.bench.memory import activation_bytes
from tinyexp.launch.local import run_local
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.models.vit.presets import PRESETS
from tinyexp.process import Environment
from tinyexp.training.optimizer import OptimizerCfg

RESULTS = Path(__file__).parents[1] / "results" / "memory.json"
SHAPE = PRESETS["deit_small_patch16_224"]


@dataclass(frozen=True)
class Subject:
    """One line of the table."""

    layout: str  # stock, sharded or replicated
    recompute: str = "none"
    tail: bool = False


SUBJECTS = [Subject("stock")] + [
    Subject(layout, recompute, tail)
    for layout in ("sharded", "replicated")
    for recompute, tail in (("none", False), ("gelu", False), ("block", False), ("none", True))
]


@dataclass(frozen=True)
class Runner:
    """A forward to count, and a whole step to time."""

    loss: Callable[[], Tensor]
    step: Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="images of the group")
    arguments = parser.parse_args()
    rows = run_local(partial(measure, arguments.batch, arguments.rounds), 2)[0]
    table = Table(title=f"DeiT-S, two ranks, bf16 autocast, {arguments.batch} images")
    for column in ("layout", "recompute", "tail", "MiB kept a rank an image", "of the stock layout", "step, of the same without"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (f"{row['mib_an_image']:.2f}", f"{row['ratio_to_stock']:.3f}", f"{row['step_ratio']:.3f}")
        table.add_row(row["layout"], row["recompute"], str(row["tail"]), *cells)
    Console(width=110).print(table)
    RESULTS.write_text(json.dumps({"batch": arguments.batch, "rows": rows}, indent=1) + "\n")


def measure(batch: int, rounds: int) -> list[dict[str, Any]]:
    """Every rank calls it."""
    torch.set_num_threads(1)
    runners = {subject: build(subject, batch) for subject in SUBJECTS}
    for runner in runners.values():
        runner.step()
    kept = {subject: activation_bytes(runner.loss) / batch for subject, runner in runners.items()}
    taken: dict[Subject, list[float]] = {subject: [] for subject in SUBJECTS}
    for _ in range(rounds):
        for subject, runner in runners.items():
            dist.barrier()
            start = time.perf_counter()
            runner.step()
            dist.barrier()
            taken[subject].append(time.perf_counter() - start)

    def step_ratio(subject: Subject) -> float:
        plain = taken[replace(subject, recompute="none")]
        return median(own / other for own, other in zip(taken[subject], plain, strict=True))

    stock = kept[SUBJECTS[0]]
    return [
        asdict(subject)
        | {"mib_an_image": bytes_kept / 2**20, "ratio_to_stock": bytes_kept / stock, "step_ratio": step_ratio(subject)}
        for subject, bytes_kept in kept.items()
    ]


def build(subject: Subject, batch: int) -> Runner:
    """Every rank must call it, and the runner's functions, together."""
    layout = "replicated" if subject.layout == "stock" else subject.layout
    cfg = AcceleratorCfg(activations=layout, precision="bf16", device="cpu")
    accelerator = cfg.build(Environment.read(), build_tp_parallelize_plan)
    images = torch.randn(batch // accelerator.replica.size, 3, 224, 224)
    classes = torch.zeros(len(images), dtype=torch.long)
    if subject.layout == "stock":
        model = build_in_stock_layout(SHAPE, img_size=224, num_classes=1000, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    else:
        model = build_vit(SHAPE, class_token_tail=subject.tail, recompute=subject.recompute)
        accelerator.prepare(model)
        optimizer = OptimizerCfg().build(model, global_batch=512)

    def loss() -> Tensor:
        with accelerator.autocast():
            logits = model(images)
        return F.cross_entropy(logits.float(), classes)

    def step() -> None:
        if subject.layout == "stock":
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            accelerator.step(loss(), optimizer)

    return Runner(loss, step)


if __name__ == "__main__":
    main()
