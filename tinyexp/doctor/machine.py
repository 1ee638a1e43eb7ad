"""How much this machine, or this container of it, has."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from tinyexp.doctor.finding import GB, LIMITED, MISSING, OK, Checks, Options
from tinyexp.process import available_cores
from tinyexp.redis_cache.memory import CGROUPS, available_memory_bytes

SHARED = Path("/dev/shm")
LEAST_MEMORY = 1 * GB  # two ranks of the demo; torch alone takes 0.3 GB in each
RECIPE_MEMORY = 6 * GB  # DeiT-S and its optimizer, average and activations of a small batch, on two ranks
BATCHES_OF_WORKER = 2 * 256 * 3 * 224 * 224 * 4  # bytes; a loader process prepares two batches of the recipe


def cores(_: Options) -> tuple[str, str, str]:
    usable, quota = available_cores(), _quota()
    found = f"{usable} of {os.cpu_count()} cores" + (f", of which the container may use {quota:g}" if quota < usable else "")
    if min(usable, quota) < 2:
        return found, LIMITED, "two ranks take turns on one core: it works, at half the speed"
    if quota < usable:
        each = max(1, int(quota) // 2)
        return found, LIMITED, f"set OMP_NUM_THREADS={each} for two ranks, so that threads do not outnumber what they may use"
    return found, OK, ""


def memory(_: Options) -> tuple[str, str, str]:
    free = available_memory_bytes()
    found = f"{free / GB:.1f} GB free"
    if free < LEAST_MEMORY:
        return found, MISSING, f"two ranks need {LEAST_MEMORY / GB:g} GB; end other programs, or raise the container's limit"
    if free < RECIPE_MEMORY:
        return found, LIMITED, "enough for the demo; for larger models lower dataloader_cfg.train_batch_size_per_device"
    return found, OK, ""


def shared_memory(_: Options) -> tuple[str, str, str]:
    if not SHARED.is_dir():
        return f"no {SHARED}", LIMITED, "set dataloader_cfg.num_workers=0: loader processes pass batches through it"
    free = shutil.disk_usage(SHARED).free
    workers = free // BATCHES_OF_WORKER
    found = f"{free / GB:.1f} GB free in {SHARED}, room for {workers} loader processes at batch 256"
    if workers < available_cores():
        return found, LIMITED, "set dataloader_cfg.num_workers=0 or smaller batches, or start the container with --shm-size=8g"
    return found, OK, ""


CHECKS: Checks = {"cores": cores, "memory": memory, "shared memory": shared_memory}


def _quota() -> float:
    """Cores that the limits of the control groups leave, at any level; infinite where there is none."""
    lowest = float("inf")
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, kinds, path = line.split(":", 2)
        root = CGROUPS if not kinds else CGROUPS / kinds
        if kinds and "cpu" not in kinds.split(","):
            continue
        for group in (Path(path), *Path(path).parents):
            folder = root / str(group).lstrip("/")
            with suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or no limit: "max", -1
                if kinds:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                if int(quota) > 0:
                    lowest = min(lowest, int(quota) / int(period))
    return lowest
