"""What a save costs the training: steps of DeiT-S at tp=2 with a save under way, beside steps without one.

    python -m benchmarks.saving.run [--rounds 5] [--batch 8]

Each round takes steps without a save, calls `save` before a step, and goes on until the file is there. The step that follows the
call counts with the time of the call. Ratios of medians are quoted, and the bytes that a rank sends for a save. Writes
benchmarks/results/saving.json.
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.examples.vit_tp_exp import LAYOUT, VitTpExp
from tinyexp.launch.local import run_local
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.process import Environment
from tinyexp.training.checkpoint import CheckpointCfg
from tinyexp.training.checkpoint_keeper import CheckpointKeeper
from tinyexp.training.epoch import train_step

RESULTS = Path(__file__).parents[1] / "results" / "saving.json"
STEPS_WITHOUT = 4  # a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="images a rank")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_local(partial(measure, Path(folder), arguments.rounds, arguments.batch), 2)
    found = ranks[0] | {"sent_bytes": ranks[1]["sent_bytes"], "command": "python -m benchmarks.saving.run"}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(
        f"step without a save {found['step_s']:.2f} s, with one under way {found['step_with_save_s']:.2f} s (ratio "
        f"{found['ratio']:.3f}, {found['steps_with_save']} steps); the call itself takes {found['call_s']:.2f} s, the file is "
        f"there {found['until_written_s']:.1f} s later; rank 1 sends {found['sent_bytes'] / 1e6:.0f} MB"
    )


def measure(folder: Path, rounds: int, batch: int) -> dict[str, Any]:
    """What this rank saw. Times are medians in seconds."""
    accelerator = AcceleratorCfg(device="cpu").build(Environment.read(), build_tp_parallelize_plan)
    experiment = VitTpExp(dataloader_cfg=DataLoaderCfg(train_batch_size_per_device=batch))
    state = experiment.build_state(accelerator)
    accelerator.training_model.train()
    images, classes = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))

    def step() -> None:
        train_step(state, images, classes, criterion=torch.nn.CrossEntropyLoss())

    without, during, calls, until_written = [], [], [], []
    with CheckpointKeeper(folder, CheckpointCfg(), LAYOUT, accelerator) as keeper:
        step()
        for _ in range(rounds):
            for _ in range(STEPS_WITHOUT):
                accelerator.barrier()
                start = time.monotonic()
                step()
                without.append(time.monotonic() - start)
            accelerator.barrier()
            first = start = time.monotonic()
            keeper.save(state, args={}, facts={})
            calls.append(time.monotonic() - start)
            under_way = True
            while under_way:
                step()
                during.append(time.monotonic() - start)
                under_way = bool(accelerator.largest([int(keeper.is_busy)])[0])
                accelerator.barrier()
                start = time.monotonic()
            until_written.append(time.monotonic() - first)
    return {
        "step_s": median(without),
        "step_with_save_s": median(during),
        "ratio": median(during) / median(without),
        "steps_with_save": len(during),
        "call_s": median(calls),
        "until_written_s": median(until_written),
        "sent_bytes": keeper.sent_bytes,
        "batch_per_rank": batch,
        "rounds": rounds,
        "mesh": "dp=1 tp=2",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
