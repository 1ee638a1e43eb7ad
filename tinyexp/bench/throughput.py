"""Speed, memory and traffic of a training step on synthetic images that already lie on the device."""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from typing import Any

import timm
import torch
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.bench.memory import HeldBytes, activation_bytes, held_bytes
from tinyexp.limits import MOST, Range, range_problems
from tinyexp.parallel.report import Traffic, TrafficCounter
from tinyexp.training.epoch import train_step
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.state import TrainState


@dataclass
class BenchCfg:
    """How long `mode=bench` measures, and against what."""

    warmup_steps: int = 10  # steps before the clock starts
    measure_steps: int = 50  # steps on the clock
    against_ddp: bool = True  # measure data parallelism too, at equal batch a rank and at equal global batch

    def problems(self) -> list[str]:
        return list(range_problems("bench_cfg.", self, {"warmup_steps": Range(0, MOST), "measure_steps": Range(1, MOST)}))


@dataclass(frozen=True)
class Timing:
    """Steps on the clock, between two barriers."""

    timed_s: float
    step_ms: float  # median
    step_ms_p10: float
    step_ms_p90: float
    images_per_s_per_rank: float
    images_per_s: float  # images counted once each over the mesh


@dataclass(frozen=True)
class BenchResult:
    """What one rank measured."""

    run: str  # accelerator, mesh and layout
    batch_per_rank: int  # images that a rank is given; ranks of a replicated group are given the same ones
    global_batch: int
    warmup_steps: int
    measure_steps: int
    training_step: Timing  # mixup, forward, loss, backward, reduction, clipping, update, moving average
    forward_backward: Timing  # forward, loss, backward and reduction only
    peak_memory_bytes: int | None  # CUDA's own; null where there is no such count
    held_bytes: HeldBytes
    traffic: list[Traffic]  # of one training step, counted live
    device: str
    precision: str
    threads: int
    torch: str
    timm: str

    def line(self) -> str:
        """One line to search logs for. Without CUDA the memory is what was counted, and says so."""
        counted = self.peak_memory_bytes is None
        memory = self.held_bytes.total if self.peak_memory_bytes is None else self.peak_memory_bytes
        return (
            f"bench[{self.run}] batch/rank={self.batch_per_rank} step={self.training_step.step_ms:.1f}ms "
            f"img/s/rank={self.training_step.images_per_s_per_rank:.1f} "
            f"effective_global_img/s={self.training_step.images_per_s:.1f} "
            f"peak_mem/rank={memory / 2**30:.2f}GB{'(counted)' if counted else ''}"
        )

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"machine": platform.processor() or platform.machine()}


def measure_training_step(
    state: TrainState,
    *,
    batch: int,
    image_size: int,
    num_classes: int,
    cfg: BenchCfg,
    criterion: Criterion,
    mixer: Mixer | None,
    clip_grad: float | None,
    label: str,
) -> BenchResult:
    """Time the whole step, and forward with backward alone; count memory and traffic. Every rank must call it."""
    accelerator = state.accelerator
    accelerator.training_model.train()
    images = torch.randn(batch, 3, image_size, image_size, device=accelerator.device, dtype=accelerator.dtype)
    targets = torch.randint(num_classes, (batch,), device=accelerator.device)

    def mixed() -> tuple[Tensor, Tensor]:
        return mixer(images.clone(), targets) if mixer is not None else (images, targets)

    def training_step() -> None:
        train_step(state, *mixed(), criterion=criterion, clip_grad=clip_grad)

    def loss(given: Tensor, wanted: Tensor) -> Tensor:
        with accelerator.autocast():
            return criterion(accelerator.training_model(given), wanted)

    fixed = mixed()

    def forward_backward() -> None:
        accelerator.backward(loss(*fixed))
        accelerator.parameters.clear_gradients()

    cuda = accelerator.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    whole = _time(training_step, accelerator, batch, cfg)
    peak = torch.cuda.max_memory_allocated() if cuda else None
    with TrafficCounter() as counter:
        training_step()
    short = replace(cfg, warmup_steps=min(cfg.warmup_steps, 2))
    return BenchResult(
        run=label,
        batch_per_rank=batch,
        global_batch=batch * accelerator.replica.size,
        warmup_steps=cfg.warmup_steps,
        measure_steps=cfg.measure_steps,
        training_step=whole,
        forward_backward=_time(forward_backward, accelerator, batch, short),
        peak_memory_bytes=peak,
        held_bytes=held_bytes(state, activation_bytes(lambda: loss(*fixed))),
        traffic=counter.traffic,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        precision=accelerator.precision,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        timm=timm.__version__,
    )


def _time(step: Callable[[], None], accelerator: Accelerator, batch: int, cfg: BenchCfg) -> Timing:
    def taken_s() -> float:
        start = time.perf_counter()
        step()
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(cfg.warmup_steps):
        taken_s()
    accelerator.barrier()
    start = time.perf_counter()
    taken = [taken_s() for _ in range(cfg.measure_steps)]
    accelerator.barrier()
    timed_s = time.perf_counter() - start
    deciles = quantiles(taken, n=10, method="inclusive") if len(taken) > 1 else taken * 9
    rate = batch * accelerator.replica.size * cfg.measure_steps / timed_s
    return Timing(
        timed_s=timed_s,
        step_ms=1000 * deciles[4],
        step_ms_p10=1000 * deciles[0],
        step_ms_p90=1000 * deciles[8],
        images_per_s_per_rank=rate / accelerator.world.size,
        images_per_s=rate,
    )
