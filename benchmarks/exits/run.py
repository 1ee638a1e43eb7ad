"""How many tensor-parallel ranks end with a status other than 0 after their work is done, out of two a run.

    python -m benchmarks.exits.run [--runs 100]

DTensor over gloo has been seen to abort a process while its interpreter exits (6 of 60, torch 2.14.1), so our ranks leave without
that exit. Writes benchmarks/results/exits.json; takes about a minute on 2 free cores.
"""

import argparse
import json
import logging
from pathlib import Path

import torch
import torch._dynamo  # the first sharded module imports it: here once, instead of in every forked rank
import torch.distributed.tensor.parallel

from tests.launch.jobs import train_tensor_parallel
from tinyexp.launch.local import run_local

RESULTS = Path(__file__).parents[1] / "results" / "exits.json"
NUM_RANKS = 2


class BadExits(logging.Handler):
    """Counts what `run_local` logs of ranks that reported a result and then ended with another status than 0."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "ended with status" in record.getMessage()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    handler = BadExits()
    logging.getLogger("tinyexp").addHandler(handler)
    for _ in range(runs):
        run_local(train_tensor_parallel, NUM_RANKS)
    found = {
        "command": "python -m benchmarks.exits.run",
        "runs": runs,
        "ranks": runs * NUM_RANKS,
        "nonzero": handler.count,
        "torch": torch.__version__,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{handler.count} of {found['ranks']} ranks ended with a status other than 0")


if __name__ == "__main__":
    main()
