"""One of the two ranks on the link. Started by `run`; rank 0 sets the rate of the wire and writes what it measured.

python -m benchmarks.link.rank <plan.json> <result.json>
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.link.subjects import Step, Subject, Twin, build_step, count
from tinyexp.models.vit.presets import ViTShape
from tinyexp.process import Environment


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    twin = Twin(ViTShape(**plan["shape"]), plan["batch"], precision=plan["precision"])
    subjects = [Subject(**fields) for fields in plan["subjects"]]
    steps = {subject: build_step(subject, twin) for subject in subjects}
    set_rate(plan["namespaces"], None)
    # DistributedDataParallel settles its buckets in the second step.
    traffic = {subject: [count(step) for _ in range(3 if subject.layout == "ddp" else 1)][-1] for subject, step in steps.items()}
    sent = {subject: sum(line.sent_bytes for line in lines) for subject, lines in traffic.items()}
    unlimited = measure(steps, max(2, plan["rounds"] - 1))  # the count above has warmed everything up
    rate = calibrated(steps, unlimited, sent, plan)
    rows = [line(subject, None, unlimited, unlimited, sent, twin.batch) for subject in subjects]
    for factor in plan["factors"]:
        set_rate(plan["namespaces"], rate * factor)
        timed = measure(steps, plan["rounds"] if factor == 1.0 else max(2, plan["rounds"] - 1))
        rows += [line(subject, rate * factor, timed, unlimited, sent, twin.batch) for subject in subjects]
    if Environment.read().world.rank == 0:
        calls = {str(subject): {each.kind: each.calls for each in lines} for subject, lines in traffic.items()}
        Path(sys.argv[2]).write_text(json.dumps({"rate_mbit": rate / 1e6, "rows": rows, "calls": calls}))
    dist.barrier()
    dist.destroy_process_group()


def measure(steps: dict[Subject, Step], rounds: int) -> dict[Subject, list[float]]:
    """Seconds of a step, the subjects taking turns: one step of each in every round."""
    taken: dict[Subject, list[float]] = {subject: [] for subject in steps}
    for number in range(1, rounds + 1):
        for subject, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            taken[subject].append(time.perf_counter() - start)
        if Environment.read().world.rank == 0:
            seconds = (f"{subject} {each[-1]:.2f} s" for subject, each in taken.items())
            print(f"round {number} of {rounds}:", ", ".join(seconds), flush=True)
    return taken


def calibrated(
    steps: dict[Subject, Step], unlimited: dict[Subject, list[float]], sent: dict[Subject, int], plan: dict[str, Any]
) -> float:
    """The rate in bits a second at which the stock layout reaches its share of data parallelism. Every rank must call it.

    A first guess adds its bits over the rate to its work; what is measured there and at a second guess is interpolated,
    logarithm over logarithm.
    """
    ddp, stock = (each for name in ("ddp", "stock") for each in steps if each.layout == name and not each.tail)
    batch, target = plan["batch"], plan["stock_share"]
    seconds_an_image = median(unlimited[ddp]) / ddp.images_of_a_step(batch)
    wire_s = batch * seconds_an_image / target - median(unlimited[stock])
    tried: list[tuple[float, float]] = []
    rate = 8 * sent[stock] / wire_s
    for _ in range(2):
        rate = set_rate(plan["namespaces"], rate)
        timed = measure({each: steps[each] for each in (ddp, stock)}, 2)
        share = min(timed[ddp]) / min(timed[stock]) * batch / ddp.images_of_a_step(batch)
        tried.append((math.log(rate), math.log(share)))
        rate *= target / share
    (first, low), (second, high) = tried
    slope = (high - low) / (second - first) if abs(second - first) > 0.02 else 1.0
    return set_rate(plan["namespaces"], math.exp(second + (math.log(target) - high) / slope))


def line(
    subject: Subject,
    rate: float | None,
    timed: dict[Subject, list[float]],
    unlimited: dict[Subject, list[float]],
    sent: dict[Subject, int],
    batch: int,
) -> dict[str, object]:
    """One row of the result. It is compared with data parallelism that has the tail, or has none, as the subject."""
    (ddp,) = (each for each in timed if each.layout == "ddp" and each.tail == subject.tail)

    def speed(which: Subject, seconds: float) -> float:
        return which.images_of_a_step(batch) / seconds

    wire_s = 8 * sent[subject] / rate if rate else 0.0
    limit = speed(subject, max(median(unlimited[subject]), wire_s))
    ratios = [speed(subject, own) / speed(ddp, other) for own, other in zip(timed[subject], timed[ddp], strict=True)]
    return {
        "layout": subject.layout,
        "overlap_chunks": subject.overlap_chunks,
        "tail": subject.tail,
        "rate_mbit": rate / 1e6 if rate else None,
        "images_per_s": speed(subject, median(timed[subject])),
        "ratio_to_ddp": median(ratios),
        "limit_ratio": limit / speed(ddp, median(timed[ddp])),
        "sent_bytes": sent[subject],
        "step_s": timed[subject],
    }


def median(values: Sequence[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).quantile(0.5).item()


def set_rate(namespaces: Sequence[str], rate: float | None) -> float:
    """Limit both directions of the wire, in bits a second, to what rank 0 says. Every rank must call it. Returns: that rate."""
    agreed = torch.tensor([rate or math.inf], dtype=torch.float64)
    dist.broadcast(agreed, src=0)
    if Environment.read().world.rank == 0:
        for namespace in namespaces:
            inside = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
            subprocess.run([*inside, "del", "dev", "wire", "root"], capture_output=True, check=False)
            if rate:
                shape = ["tbf", "rate", f"{rate:.0f}bit", "burst", "64kb", "limit", "4mb"]
                subprocess.run([*inside, "add", "dev", "wire", "root", *shape], check=True)
    dist.barrier()
    return agreed.item()


if __name__ == "__main__":
    main()
