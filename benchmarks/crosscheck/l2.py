"""L2: the official DeiT-S checkpoint on ImageNet's 50,000 validation images, at tp=1 and tp=2, beside the published accuracy.

    make crosscheck-l2 IMAGENET_HOME=/data/imagenet [KEYS='ray_cfg.ray_num_gpus_per_worker=0.0']

Writes benchmarks/results/crosscheck_l2.json.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKPOINT = "https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth"
PUBLISHED = {"acc1": 79.8, "source": "facebookresearch/deit README @ 7e160fe4, DeiT-small"}
TOLERANCE = 0.1  # points of top-1
RESULTS = Path(__file__).parent.parent / "results" / "crosscheck_l2.json"


def main() -> None:
    if not os.environ.get("IMAGENET_HOME"):
        raise SystemExit("IMAGENET_HOME is not set; for example: make crosscheck-l2 IMAGENET_HOME=...")
    measured = {f"tp={size}": accuracy(size) for size in (1, 2)}
    RESULTS.write_text(json.dumps({"published": PUBLISHED, "measured": measured}, indent=2) + "\n")
    for name, row in measured.items():
        print(f"{name}  top-1 {row['test_acc1']:.3f} %  top-5 {row['test_acc5']:.3f} %  (published {PUBLISHED['acc1']} %)")
    off = [name for name, row in measured.items() if abs(row["test_acc1"] - PUBLISHED["acc1"]) > TOLERANCE]
    if off:
        raise SystemExit(f"{', '.join(off)}: top-1 is more than {TOLERANCE} points from the published value")


def accuracy(tp_size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tinyexp.examples.vit_tp_exp", "mode=eval", f"module_cfg.pretrained_from={CHECKPOINT}"]
        command += [f"ray_cfg.ray_num_worker={tp_size}", f"output_root={folder}", *sys.argv[1:]]
        subprocess.run(command, check=True)
        return json.loads((Path(folder) / "vit_tp_exp" / "eval.json").read_text())


if __name__ == "__main__":
    main()
