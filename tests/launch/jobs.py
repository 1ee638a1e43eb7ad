"""What the ranks of the tests do. Importable by name, so that every start method and Ray can ship it."""

import gc
import io
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tinyexp.errors import DataError
from tinyexp.process import Environment
from tinyexp.signals import StopRequest

PIDS_FOLDER = "PIDS_FOLDER"  # a variable: the folder in which every process of the run leaves its pid
MAX_RESTARTS = "MAX_RESTARTS"  # likewise, for `main`
KILLS = "TINYEXP_KILLS"  # likewise: attempts of which a rank is killed


def note_pid() -> None:
    if folder := os.environ.get(PIDS_FOLDER):
        Path(folder, str(os.getpid())).touch()


def join_group() -> int:
    import torch.distributed as dist

    note_pid()
    dist.init_process_group("gloo")
    return dist.get_rank()


def sum_over_ranks() -> float:
    import torch
    import torch.distributed as dist

    join_group()
    total = torch.tensor(Environment.read().world.rank + 1.0)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


def describe() -> dict[str, Any]:
    """The sum over the ranks, and what this rank sees of its surroundings."""
    total = sum_over_ranks()
    import torch

    environment = Environment.read()
    print(f"line of rank {environment.world.rank}\nlast line of rank {environment.world.rank}")
    print(f"rank {environment.world.rank} on stderr", file=sys.stderr)
    os.system(f"echo a child of rank {environment.world.rank}")
    return {
        "total": total,
        "rank": environment.world.rank,
        "local_rank": environment.local.rank,
        "local_size": environment.local.size,
        "threads": torch.get_num_threads(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "folder": os.getcwd(),
        "data": Path("data.txt").read_text() if Path("data.txt").exists() else None,
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "carried": os.environ.get("TINYEXP_TEST"),
        "in_main_thread": threading.current_thread() is threading.main_thread(),
    }


def fail_on_rank_1() -> None:
    """Rank 1 meets a bad file; rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    if join_group() == 1:
        raise DataError("train/c0/5.JPEG cannot be read")
    dist.all_reduce(torch.zeros(1))


def lose_rank_1_at_first() -> float:
    """Rank 1 is killed in the middle of a collective, in the first KILLS attempts."""
    import torch
    import torch.distributed as dist

    attempt, rank = Environment.read().attempt, join_group_as_a_run_does()
    print(f"rank {rank} in attempt {attempt} at {time.time()}", flush=True)
    if rank == 1 and attempt < int(os.environ.get(KILLS, "1")):
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    print(f"rank {rank} in attempt {attempt} has {total.item()}", flush=True)
    return total.item()


def lose_node_of_rank_1_at_first() -> float:
    """Rank 1 and the Ray that has started it are killed at once, on a node that the driver is not on. Ray has yet to notice."""
    import torch
    import torch.distributed as dist

    attempt, rank = Environment.read().attempt, join_group()
    print(f"rank {rank} in attempt {attempt} at {time.time()}", flush=True)
    if rank == 1 and attempt == 0:
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    return total.item()


def fail_always() -> None:
    """Rank 1 meets an error of the program, the same one every time."""
    if Environment.read().world.rank == 1:
        raise KeyError("weight")


def read_attempt() -> int:
    return Environment.read().attempt


def fail_after_leaving_the_group() -> None:
    """Rank 1 is lost to rank 0 before it says why."""
    import torch
    import torch.distributed as dist

    if join_group() == 1:
        dist.destroy_process_group()
        time.sleep(0.5)
        raise ValueError("the cause")
    dist.all_reduce(torch.zeros(1))


def kill_rank_1() -> None:
    """Rank 1 is killed while a process that it started lives on, as loader workers do."""
    import torch
    import torch.distributed as dist

    rank = join_group()
    multiprocessing.get_context("fork").Process(target=sleep_noted).start()
    dist.barrier()
    if rank == 1:
        while len(list(Path(os.environ[PIDS_FOLDER]).iterdir())) < 5:  # the driver's, and two of each rank
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def sleep_noted() -> None:
    note_pid()
    time.sleep(100)


def lose_rank_1() -> None:
    """Rank 1 and all that it has started are gone at once, as when its node is lost."""
    import torch
    import torch.distributed as dist

    if join_group() == 1:
        await_watch()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def await_watch() -> None:
    """Until this rank is connected with those of other nodes that watch it."""
    from tinyexp.launch.node_watch import NodeWatch

    deadline = time.monotonic() + 60
    while not any(isinstance(each, NodeWatch) and each._links for each in gc.get_objects()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0)  # for the other end to know who we are


def wait_for_rank_1() -> None:
    """Rank 1 keeps the other waiting."""
    import torch
    import torch.distributed as dist

    rank = join_group()
    print("asleep", flush=True)
    if rank == 1:
        time.sleep(100)
    dist.all_reduce(torch.zeros(1))


def join_group_as_a_run_does() -> int:
    """Apart from the attempts before this one."""
    import torch

    from tinyexp.accelerators.process_group import open_process_group

    note_pid()
    open_process_group(Environment.read(), torch.device("cpu"), timeout_s=60.0)
    return Environment.read().world.rank


def sum_within_seconds(before: Callable[[], None]) -> float:
    """The sum over the ranks, in a collective that waits for 3 s in the first attempt. To meet at first the ranks need longer."""
    import torch
    import torch.distributed as dist

    rank = join_group_as_a_run_does()
    dist.barrier()
    is_first = Environment.read().attempt == 0
    group = dist.new_group(timeout=timedelta(seconds=3 if is_first else 60))
    assert isinstance(group, dist.ProcessGroup)
    if rank == 1 and is_first:
        before()
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total, group=group)
    return total.item()


def sleep_on_rank_1_at_first() -> float:
    return sum_within_seconds(partial(time.sleep, 100))


def stop_rank_1_at_first() -> float:
    return sum_within_seconds(stop_noted)


def stop_noted() -> None:
    multiprocessing.get_context("fork").Process(target=sleep_noted).start()  # as a loader worker
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep_long() -> None:
    note_pid()
    print("asleep", flush=True)
    time.sleep(100)


def save_when_asked() -> None:
    """What a trainer does about a signal."""
    with StopRequest() as stop:
        note_pid()
        print("asleep", flush=True)
        while not stop.count:
            time.sleep(0.05)
        print(f"rank {Environment.read().world.rank} saved after {stop.name}", flush=True)


def leave_with_status_3() -> None:
    os._exit(3)


class Trap(io.StringIO):
    """Ends the process that flushes it."""

    def flush(self) -> None:
        os._exit(5)


def die_while_leaving() -> str:
    sys.stdout = Trap()
    return "a result"


def return_something_unpicklable() -> Any:
    return lambda: None


def return_a_large_tensor() -> Any:
    import torch

    return torch.full((1_000_000,), float(Environment.read().world.rank))


def train_tensor_parallel() -> float:
    """Ten steps of a two-layer MLP whose weights are DTensors over the two ranks."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    join_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.tensor(0.0)
    for _ in range(10):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()
    return loss.item()


def main() -> None:
    """`python -m tests.launch.jobs LAUNCHER JOB`: run the job on two processes and show the results, as a command would."""
    from tinyexp.errors import TinyExpError
    from tinyexp.launch.external import run_external
    from tinyexp.launch.local import run_local
    from tinyexp.launch.ray_resources import ANY_NODE, NodeGroup
    from tinyexp.launch.ray_workers import RayCfg, run_ray

    logging.basicConfig(format="%(levelname)s %(message)s")
    launcher, job = sys.argv[1], globals()[sys.argv[2]]
    max_restarts = int(os.environ.get(MAX_RESTARTS, "0"))
    note_pid()
    try:
        if launcher == "ray":
            group = NodeGroup(int(sys.argv[4]), "the key of the test") if len(sys.argv) > 4 else ANY_NODE
            found = run_ray(job, RayCfg(**json.loads(sys.argv[3])), group=group, max_restarts=max_restarts)
        elif launcher == "external":
            found = run_external(job)
        else:
            found = run_local(job, 2, start_method=launcher, max_restarts=max_restarts)
    except TinyExpError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
    for result in found:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
