"""Open and close torch's process group from what the launcher told this process."""

import contextlib
import datetime
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from tinyexp.errors import MachineError
from tinyexp.process import Environment


def open_process_group(environment: Environment, device: torch.device, timeout_s: float) -> None:
    """Join the group; every rank must call it. gloo on CPU, nccl on CUDA. A process that is alone opens none.

    Raises: MachineError where the store of rank 0 cannot be served or reached.
    """
    world = environment.world
    if world.size == 1 or dist.is_initialized():
        return
    timeout = datetime.timedelta(seconds=timeout_s)
    address = f"{environment.master_addr}:{environment.master_port}"
    serves = world.rank == 0 and not environment.store_is_hosted
    try:
        store = TCPStore(environment.master_addr, environment.master_port, world.size, is_master=serves, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        act = "serve" if serves else "reach"
        raise MachineError(
            f"rank {world.rank} of {world.size} cannot {act} the store at MASTER_ADDR:MASTER_PORT={address}: "
            f"{str(error).splitlines()[0]}; use a free port and an address that every rank reaches"
        ) from None
    # An elastic launcher keeps one store over restarts, and a restarted rank must not read addresses of the dead attempt.
    store = PrefixStore(f"attempt{environment.attempt}", store)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
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
