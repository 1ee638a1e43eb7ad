"""What a training step of DeiT-S pays for its guards on two CPU ranks: one verdict of all ranks, and the comparison of digests.

    python -m benchmarks.guards.run [--batch 4]

Times are medians of this machine and quoted as shares of a whole step of the same run. Writes benchmarks/results/guards.json.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.accelerators.divergence import check_agreement
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.launch.local import run_local
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.process import Environment
from tinyexp.training.epoch import train_step
from tinyexp.training.verdict import agree

RESULTS = Path(__file__).parents[1] / "results" / "guards.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4, help="images a rank")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    found = run_local(partial(measure, arguments.batch, arguments.rounds), 2)[0]
    RESULTS.write_text(json.dumps({"command": "python -m benchmarks.guards.run", **found}, indent=2) + "\n", encoding="utf-8")
    for name, share in found["share_of_a_step"].items():
        print(f"{name}: {100 * share:.2f} % of a step, {1000 * found['seconds'][name]:.1f} ms")


def measure(batch: int, rounds: int) -> dict[str, Any]:
    """Medians on this rank, all guards taking turns with the step."""
    accelerator = AcceleratorCfg(device="cpu").build(Environment.read(), build_tp_parallelize_plan)
    state = VitTpExp(dataloader_cfg=DataLoaderCfg(train_batch_size_per_device=batch)).build_state(accelerator)
    accelerator.training_model.train()
    images, classes = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    loss = torch.nn.CrossEntropyLoss()
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> None:
        accelerator.barrier()
        start = time.monotonic()
        work()
        seconds.setdefault(name, []).append(time.monotonic() - start)

    for _ in range(rounds):
        timed("step", lambda: train_step(state, images, classes, criterion=loss))
        accelerator.backward(loss(accelerator.training_model(images), classes))
        timed("are my gradients finite", accelerator.nonfinite_gradients)
        accelerator.parameters.clear_gradients()
        timed("verdict of all ranks", lambda: agree(accelerator, loss=1.0, bad_gradient=False, signal_number=0, data_s=0.0))
        timed("digests, every check_every steps", lambda: check_agreement(accelerator, step=0))
    medians = {name: median(values) for name, values in seconds.items()}
    step = medians.pop("step")
    return {
        "seconds": medians | {"step": step},
        "share_of_a_step": {name: value / step for name, value in medians.items()},
        "batch_per_rank": batch,
        "mesh": "dp=1 tp=2",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
