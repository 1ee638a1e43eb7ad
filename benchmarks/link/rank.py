"""One of the two ranks on the link. Started by `run`; rank 0 sets the rate of the wire and writes what it measured.

python -m benchmarks.link.rank <plan.json> <result.json>
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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
    traffic = {subject: [count(step) for _ in range(3)][-1] for subject, step in steps.items()}
    sent = {subject: sum(line.sent_bytes for line in lines) for subject, lines in traffic.items()}
    unlimited = measure(steps, plan["rounds"])
    rate = calibrated(unlimited, sent, twin.batch, plan["seed_share"])
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
    """Seconds of a step, the subjects taking turns: one step of each in every round, after one to warm up."""
    taken: dict[Subject, list[float]] = {subject: [] for subject in steps}
    for number in range(rounds + 1):
        for subject, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            if number:
                taken[subject].append(time.perf_counter() - start)
        if Environment.read().world.rank == 0:
            seconds = (f"{subject} {each[-1]:.2f} s" for subject, each in taken.items() if each)
            print(f"round {number} of {rounds}:", ", ".join(seconds), flush=True)
    return taken


def calibrated(unlimited: dict[Subject, list[float]], sent: dict[Subject, int], batch: int, share: float) -> float:
    """The rate in bits a second at which the seed's layout reaches `share` of data parallelism, the wire added to the work.

    A first guess: `run` reports the share that was measured at it.
    """
    (seed,), (ddp,) = ([each for each in unlimited if each.layout == name and not each.tail] for name in ("seed", "ddp"))
    # share = ddp seconds an image / seed seconds an image, where seconds = work + bytes * 8 / rate
    work = ddp.images_of_a_step(batch), seed.images_of_a_step(batch)
    seconds = torch.tensor([min(unlimited[ddp]) / work[0], min(unlimited[seed]) / work[1]])
    bits = torch.tensor([8.0 * sent[ddp] / work[0], 8.0 * sent[seed] / work[1]])
    rate = (share * bits[1] - bits[0]) / (seconds[0] - share * seconds[1])
    shared = torch.tensor([rate])
    dist.broadcast(shared, src=0)
    return shared.item()


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
