"""Speed and memory of a whole training step on synthetic images that already lie on the device."""

import platform
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tinyexp.training.epoch import train_step
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.state import TrainState


@dataclass
class BenchCfg:
    """How long `mode=bench` measures."""

    warmup_steps: int = 10  # steps before the clock starts
    measure_steps: int = 50  # steps on the clock

    def problems(self) -> list[str]:
        return [
            f"bench_cfg.{name}={getattr(self, name)}: a number >= {least} is needed"
            for name, least in (("warmup_steps", 0), ("measure_steps", 1))
            if getattr(self, name) < least
        ]


@dataclass(frozen=True)
class BenchResult:
    """What one rank measured. Images are counted once each over the mesh."""

    run: str  # accelerator, mesh and layout
    batch_per_rank: int
    global_batch: int
    warmup_steps: int
    measure_steps: int
    timed_s: float
    step_ms: float  # median
    step_ms_min: float
    step_ms_max: float
    images_per_s_per_rank: float
    images_per_s: float
    peak_memory_gb: float | None  # CUDA's own peak; null where it is not measured
    device: str
    precision: str
    threads: int
    torch: str

    def line(self) -> str:
        memory = "not measured" if self.peak_memory_gb is None else f"{self.peak_memory_gb:.2f}GB"
        return (
            f"bench[{self.run}] batch/rank={self.batch_per_rank} "
            f"step={self.step_ms:.1f}ms img/s/rank={self.images_per_s_per_rank:.1f} "
            f"effective_global_img/s={self.images_per_s:.1f} peak_mem/rank={memory}"
        )

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"machine": platform.processor() or platform.machine()}


def measure_training_step(
    state: TrainState,
    images: Tensor,
    targets: Tensor,
    *,
    cfg: BenchCfg,
    criterion: Criterion,
    mixer: Mixer | None,
    clip_grad: float | None,
    label: str,
) -> BenchResult:
    """Time mixup, forward, loss, backward, reduction, clipping, update and moving average. Every rank must call it."""
    accelerator = state.accelerator
    accelerator.training_model.train()

    def step() -> float:
        start = time.perf_counter()
        mixed, mixed_targets = mixer(images.clone(), targets) if mixer is not None else (images, targets)
        train_step(state, mixed, mixed_targets, criterion=criterion, clip_grad=clip_grad)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(cfg.warmup_steps):
        step()
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    accelerator.barrier()
    start = time.perf_counter()
    taken = [step() for _ in range(cfg.measure_steps)]
    accelerator.barrier()
    timed_s = time.perf_counter() - start
    global_batch = len(images) * accelerator.replica.size
    rate = global_batch * cfg.measure_steps / timed_s
    cuda = accelerator.device.type == "cuda"
    return BenchResult(
        run=label,
        batch_per_rank=len(images),
        global_batch=global_batch,
        warmup_steps=cfg.warmup_steps,
        measure_steps=cfg.measure_steps,
        timed_s=timed_s,
        step_ms=1000 * median(taken),
        step_ms_min=1000 * min(taken),
        step_ms_max=1000 * max(taken),
        images_per_s_per_rank=rate / accelerator.world.size,
        images_per_s=rate,
        peak_memory_gb=torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        precision=accelerator.precision,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
