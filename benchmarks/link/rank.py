"""One of the two ranks on the link. Started by `run`; rank 0 sets the rate of the wire and writes what it measured.

python -m benchmarks.link.rank <plan.json> <result.json>
"""

import json
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
    unlimited = measure(steps, plan["rounds"])  # the count above has warmed everything up
    rate = calibrated(steps, unlimited, sent, plan)
    rows = [line(subject, None, unlimited, unlimited, sent, twin.batch) for subject in subjects]
    for factor in plan["factors"]:
        set_rate(plan["namespaces"], rate * factor)
        timed = measure(steps, plan["rounds"])
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
    """The rate in bits a second at which the seed's layout reaches its share of data parallelism. Every rank must call it.

    Seconds an image are work + bits / rate. What the wire really adds at the first guess corrects the bits for the next.
    """
    pair = [each for name in ("ddp", "seed") for each in steps if each.layout == name and not each.tail]
    images = torch.tensor([each.images_of_a_step(plan["batch"]) for each in pair])
    work = torch.tensor([median(unlimited[each]) for each in pair]) / images
    bits = torch.tensor([8.0 * sent[each] for each in pair]) / images
    rate = torch.zeros(1)
    for _ in range(3):
        # share = seconds of ddp / seconds of the seed
        rate[0] = (plan["seed_share"] * bits[1] - bits[0]) / (work[0] - plan["seed_share"] * work[1])
        dist.broadcast(rate, src=0)
        set_rate(plan["namespaces"], rate.item())
        timed = measure({each: steps[each] for each in pair}, 1)
        measured = torch.tensor([timed[each][0] for each in pair]) / images
        bits = ((measured - work) * rate).clamp(min=0)
    return rate.item()


def line(
    subject: Subject,
    rate: float | None,
    timed: dict[Subject, list[float]],
    unlimited: dict[Subject, list[float]],
    sent: dict[Subject, int],
    batch: int,
) -> dict[str, object]:
    """One row of the result. Data parallelism with the same tail is what it is compared with, the seed's with the one without."""
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


def set_rate(namespaces: Sequence[str], rate: float | None) -> None:
    """Limit both directions of the wire, in bits a second. Every rank must call it."""
    dist.barrier()
    if Environment.read().world.rank == 0:
        for namespace in namespaces:
            inside = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
            subprocess.run([*inside, "del", "dev", "wire", "root"], capture_output=True, check=False)
            if rate:
                shape = ["tbf", "rate", f"{rate:.0f}bit", "burst", "64kb", "limit", "4mb"]
                subprocess.run([*inside, "add", "dev", "wire", "root", *shape], check=True)
    dist.barrier()


if __name__ == "__main__":
    main()
