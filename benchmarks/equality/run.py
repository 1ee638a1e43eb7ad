"""L1 in figures: the largest differences of training on two ranks from training on one process.

    python -m benchmarks.equality.run

Three AdamW steps at the recipe's learning rate for their 8 images, two models, both layouts, both precisions. The bounds are
those of tests/examples/test_vit_tp_exp.py. Writes benchmarks/results/equality.json.
"""

import json
from pathlib import Path

import torch

from tests.helpers.equality import MODELS, differences_from_one_process
from tests.helpers.ranks import run_on_ranks

RESULTS = Path(__file__).parents[1] / "results" / "equality.json"


def main() -> None:
    rows = []
    for name in MODELS:
        for activations in ("sharded", "replicated"):
            for dtype in (torch.float32, torch.float64):
                found = run_on_ranks(differences_from_one_process, 2, name, {"activations": activations}, dtype)
                worst = {
                    quantity: max(getattr(rank, quantity) for rank in found)
                    for quantity in ("logits", "gradients", "gradient_norm", "weights", "key_bias")
                }
                row = {"model": name, "activations": activations, "dtype": str(dtype).removeprefix("torch.")}
                rows.append(row | worst | {"collectives": found[0].collectives})
                print(*row.values(), *(f"{quantity} {value:.1e}" for quantity, value in worst.items()), sep="  ")
    RESULTS.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
