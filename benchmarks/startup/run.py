"""From a command to its first optimizer step, by launcher, two ranks on the CPU. Interleaved runs, medians, ratios.

    python benchmarks/startup/run.py [--runs 5]

A run counts as started when its first step's line appears. Writes benchmarks/results/startup.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent.parent / "results" / "startup.json"
SMOKE = [
    "dataloader_cfg.fake_data=true",
    "dataloader_cfg.input_size=32",
    "dataloader_cfg.train_batch_size_per_device=8",
    "dataloader_cfg.val_batch_size_per_device=8",
    "dataloader_cfg.num_workers=0",
    "module_cfg.img_size=32",
    "module_cfg.num_classes=10",
    "epochs=1",
    "max_train_steps=1",
    "ray_cfg.ray_num_gpus_per_worker=0.0",
    "ray_cfg.ray_num_cpus_per_worker=1",
    "accelerator_cfg.device=cpu",
]
MODULE = ["-m", "tinyexp.examples.vit_tp_exp", *SMOKE]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *MODULE, "launcher=mp"]
LAUNCHES = {
    "torchrun": TORCHRUN,
    "ray": [sys.executable, *MODULE, "launcher=ray"],
    "local": [sys.executable, *MODULE, "launcher=local"],
}
PARTS = {
    "import torch": "import torch",
    "import the experiment (torch, timm, torchvision)": "import tinyexp.examples.vit_tp_exp",
    "import ray, start and stop it": (
        "import ray; ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20); "
        "ray.shutdown()"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    seconds: dict[str, list[float]] = {name: [] for name in LAUNCHES}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs + 1):
            for name, command in LAUNCHES.items():
                taken = until_first_step([*command, f"output_root={folder}/{name}"], environment)
                if run:  # the first round warms the disk
                    seconds[name].append(taken)
                    print(f"round {run}  {name:9} {taken:6.2f} s", flush=True)
    parts = {name: [timed([sys.executable, "-c", code], environment) for _ in range(runs)] for name, code in PARTS.items()}
    medians = {name: median(values) for name, values in seconds.items()}
    record = {
        "command": "python benchmarks/startup/run.py",
        "runs": runs,
        "ranks": 2,
        "seconds": seconds,
        "median_s": medians,
        "ratio_to_torchrun": {name: value / medians["torchrun"] for name, value in medians.items()},
        "parts_median_s": {name: median(values) for name, values in parts.items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    for name, value in medians.items():
        print(f"{name:9} median {value:6.2f} s = {record['ratio_to_torchrun'][name]:.2f} x torchrun")
    for name, value in record["parts_median_s"].items():
        print(f"of which  {value:6.2f} s  {name}")


def until_first_step(command: list[str], environment: dict[str, str]) -> float:
    start = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        taken, output = None, []
        for line in process.stdout:
            output.append(line)
            if taken is None and line.startswith("Epoch: [0]"):
                taken = time.monotonic() - start
    if process.returncode or taken is None:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}:\n{''.join(output)}")
    return taken


def timed(command: list[str], environment: dict[str, str]) -> float:
    start = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.monotonic() - start


if __name__ == "__main__":
    main()
