"""What ranks compute on and talk through, tried with two of them. torch is imported by the checks, not by this file."""

import shutil
import subprocess
import time
from functools import partial

from tinyexp.doctor.finding import LIMITED, MISSING, OK, Checks, Options
from tinyexp.errors import TinyExpError

NUMBERS = 1 << 18  # float32 that the ranks sum, 1 MiB
JOIN_S = 10.0
ON_CPU = "ray_cfg.ray_num_gpus_per_worker=0.0 runs on the CPU, as the demo does"
CUDA_BUILD = "install a CUDA build of torch (pytorch.org has the command)"


def backends(_: Options) -> tuple[str, str, str]:
    import torch
    import torch.distributed as dist

    there = [name for name in ("gloo", "nccl") if dist.is_backend_available(name)]
    found = f"torch {torch.__version__} has {' and '.join(there) or 'neither gloo nor nccl'}"
    if "gloo" not in there:
        return found, MISSING, "install a build of torch with gloo, through which ranks on CPUs and their hosts talk"
    if "nccl" not in there:
        return found, LIMITED, f"GPUs talk through nccl: {CUDA_BUILD}; CPUs need gloo only"
    return found, OK, ""


def two_on_cpu(_: Options) -> tuple[str, str, str]:
    return _two_ranks("cpu", "look at the rows above; ranks of one machine are processes that meet on its loopback address")


def gpus(_: Options) -> tuple[str, str, str]:
    import torch

    seen, usable = _seen_by_driver(), torch.cuda.device_count()
    cards = "; ".join(seen)
    if not seen and not usable:
        return "none", LIMITED, ON_CPU
    if torch.version.cuda is None and torch.version.hip is None:
        return f"the driver sees {cards}, but torch {torch.__version__} is a CPU build", MISSING, f"{CUDA_BUILD}; {ON_CPU}"
    if not usable:
        advice = f"{CUDA_BUILD} for this driver, or update the driver; look at CUDA_VISIBLE_DEVICES; {ON_CPU}"
        return f"the driver sees {cards}, torch for CUDA {torch.version.cuda} none: {_cuda_error()}", MISSING, advice
    found = f"{usable} usable by torch for CUDA {torch.version.cuda}: {cards or 'their driver does not name them'}"
    if usable == 1:
        return found, LIMITED, "tp=2 needs two; one GPU runs with ray_cfg.ray_num_worker=1"
    return found, OK, ""


def two_on_gpu(_: Options) -> tuple[str, str, str]:
    import torch

    if (usable := torch.cuda.device_count()) < 2:
        return f"not tried, {usable} GPUs are usable", LIMITED, "two GPUs are needed for tp=2 on GPUs"
    return _two_ranks("cuda", "set NCCL_DEBUG=INFO and run again to see what it does; NCCL_P2P_DISABLE=1 avoids a broken link")


CHECKS: Checks = {"backends": backends, "2 ranks, gloo": two_on_cpu, "GPUs": gpus, "2 ranks, nccl": two_on_gpu}


def _two_ranks(device_type: str, advice: str) -> tuple[str, str, str]:
    """Two processes by the launcher of runs join a group and sum numbers."""
    from tinyexp.launch.local import run_local

    try:
        took_ms = run_local(partial(sum_over_ranks, device_type), 2)[0]
    except TinyExpError as error:
        return str(error).splitlines()[0], MISSING, advice
    return f"an all-reduce of 1 MiB between two processes gives the sum, in {took_ms:.1f} ms", OK, ""


def sum_over_ranks(device_type: str) -> float:
    """Milliseconds that a sum over all ranks takes. Every rank must call it. Raises: ArithmeticError where the sum is wrong."""
    import torch
    import torch.distributed as dist

    from tinyexp.accelerators.device import take_device
    from tinyexp.accelerators.process_group import close_process_group, open_process_group
    from tinyexp.process import Environment

    environment = Environment.read()
    device = take_device(environment, asked=device_type)
    open_process_group(environment, device, JOIN_S)
    took_s = 0.0
    for _ in range(2):  # the first one opens the connections
        numbers = torch.full((NUMBERS,), float(environment.world.rank + 1), device=device)
        start = time.monotonic()
        dist.all_reduce(numbers)
        total = numbers.unique().tolist()  # waits for a GPU
        took_s = time.monotonic() - start
        if total != [3.0]:
            raise ArithmeticError(f"1 + 2 over two ranks is {total}")
    close_process_group()
    return 1000 * took_s


def _seen_by_driver() -> list[str]:
    """Name, memory and driver of each NVIDIA GPU, as nvidia-smi lists them."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=JOIN_S, check=False)
    lines = (done.stdout if done.returncode == 0 else "").splitlines()
    return [f"{name}, {memory}, driver {driver}" for name, memory, driver in (line.split(", ") for line in lines if line)]


def _cuda_error() -> str:
    import torch

    try:
        torch.cuda.init()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "CUDA_VISIBLE_DEVICES hides them"
