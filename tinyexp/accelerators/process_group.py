"""Open and close torch's process group from what the launcher told this process."""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from tinyexp.errors import MachineError, PeerFailed
from tinyexp.process import Axis, Environment, host_name

POLL_S = 0.05
TROUBLE = "roll/trouble"  # what a rank has found wrong before it left


def open_process_group(environment: Environment, device: torch.device, timeout_s: float) -> None:
    """Join the group; every rank must call it. gloo on CPU, nccl on CUDA. A process that is alone opens none.

    Raises: MachineError where this torch lacks the backend, the store of rank 0 cannot be served or reached, ranks contradict
    each other, or one started by hand does not come within `timeout_s`.
    """
    world = environment.world
    if world.size == 1 or dist.is_initialized():
        return
    backend = _backend(device)
    timeout = datetime.timedelta(seconds=timeout_s)
    # An elastic launcher keeps one store over restarts, and a restarted rank must not read addresses of the dead attempt.
    store = PrefixStore(f"attempt{environment.attempt}", _store(environment, timeout))
    _call_roll(store, environment, timeout_s)
    dist.init_process_group(
        backend,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def close_process_group() -> None:
    """Leave together: a rank that tears gloo down early can abort the others."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


@contextlib.contextmanager
def pretended_process_group(world_size: int) -> Iterator[None]:
    """This process as rank 0 of `world_size`, whose collectives send nothing: for meshes and plans without processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch 2.14.1 has no public name for it

    if world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        close_process_group()


def _backend(device: torch.device) -> str:
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_backend_available(backend):
        there = ", ".join(name for name in ("gloo", "nccl", "mpi", "xccl") if dist.is_backend_available(name)) or "none"
        advice = (
            "a CUDA build of torch, or set ray_cfg.ray_num_gpus_per_worker=0.0" if backend == "nccl" else "another build of torch"
        )
        raise MachineError(
            f"this torch ({torch.__version__}) has no {backend}, by which ranks on {device.type} exchange tensors; "
            f"it has {there}. Install {advice}"
        )
    return backend


def _store(environment: Environment, timeout: datetime.timedelta) -> TCPStore:
    """The place where the ranks meet: served by rank 0, or by the launcher."""
    world, host, port = environment.world, environment.master_addr, environment.master_port
    serves = world.rank == 0 and not environment.store_is_hosted
    try:
        return TCPStore(host, port, world.size, is_master=serves, timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        cause = str(error).splitlines()[0]
        if serves and "EADDRINUSE" in cause:
            cause = "another program, or another process with RANK=0, listens on that port"
        raise MachineError(
            f"rank {world.rank} of {world.size} cannot {'serve' if serves else 'reach'} the store at MASTER_ADDR:MASTER_PORT="
            f"{host}:{port}: {cause}; use a free port and an address that every rank reaches, the same for all ranks"
        ) from None


def _call_roll(store: PrefixStore, environment: Environment, timeout_s: float) -> None:
    """Every rank signs in under its number. Where no launcher watches over the ranks, wait until all have."""
    world = environment.world
    if problem := _contradiction(store, world):
        store.set(TROUBLE, problem)  # for those who would wait for this rank
        raise MachineError(problem)
    if environment.store_is_hosted:
        return
    deadline = time.monotonic() + timeout_s
    try:
        while absent := [str(rank) for rank in range(world.size) if not store.check([f"roll/{rank}"])]:
            if store.check([TROUBLE]):
                raise MachineError(store.get(TROUBLE).decode())
            if time.monotonic() > deadline:
                raise MachineError(_of_absence(absent, environment, timeout_s))
            time.sleep(POLL_S)
    except RuntimeError:
        raise PeerFailed("rank 0, which serves the store, has left") from None


def _contradiction(store: PrefixStore, world: Axis) -> str:
    """Sign in, and say what is wrong where another rank has signed in differently."""
    size = store.compare_set("roll/size", "", str(world.size)).decode()
    if size != str(world.size):
        return (
            f"WORLD_SIZE={world.size} for rank {world.rank}, but WORLD_SIZE={size} for a rank that came before; "
            f"all ranks need the same number, and each a RANK below it"
        )
    process = f"process {os.getpid()} on {host_name()}"
    holder = store.compare_set(f"roll/{world.rank}", "", process).decode()
    if holder != process:
        return (
            f"RANK={world.rank} is taken twice, by {holder} and by {process}; give each of the {world.size} processes a RANK of "
            "its own, and each run a MASTER_PORT of its own"
        )
    return ""


def _of_absence(absent: Sequence[str], environment: Environment, timeout_s: float) -> str:
    return (
        f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)} of {environment.world.size} did not come to MASTER_ADDR:"
        f"MASTER_PORT={environment.master_addr}:{environment.master_port} within timeout_s={timeout_s:g}; "
        "start one process for each RANK below WORLD_SIZE, all with the same address and port"
    )
