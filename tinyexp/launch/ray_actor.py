"""One rank inside a Ray worker process."""

import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinyexp.errors import MachineError
from tinyexp.launch.output import print_at_driver
from tinyexp.launch.rendezvous import LOOPBACK, listen, meet_across_nodes, serve_store, stay_on_loopback
from tinyexp.launch.worker import limit_threads, obey_signals, pack, print_stacks_when_asked, run_as_rank, settle
from tinyexp.process import Environment, host_name, threads_per_rank

# Variables of the driver that its ranks take over. Those of one machine (PATH, HOME, CUDA_VISIBLE_DEVICES) stay behind.
CARRIED_PREFIXES = ("TINYEXP_", "IMAGENET_", "OMP_", "MKL_", "NCCL_", "GLOO_", "TORCH_", "WANDB_", "HF_", "PYTORCH_", "CUBLAS_")


@dataclass(frozen=True)
class Place:
    """Where Ray has put an actor."""

    node_id: str
    host: str  # name of the node
    devices: tuple[str, ...]  # Ray's ids of its GPUs
    pid: int
    process_group: int  # of the actor and its loader workers


@dataclass(frozen=True)
class Job:
    """What one rank is to do, and what of its driver's surroundings it needs for that."""

    function: bytes  # by Ray's cloudpickle; read only once `search_path` is in place
    environment: Environment
    folder: str
    search_path: list[str]
    variables: Mapping[str, str]
    num_cpus: int  # that Ray has set aside for the rank
    output_address: tuple[str, int]
    output_token: bytes


def carried_variables() -> dict[str, str]:
    """The variables of this process that a rank takes over."""
    return {name: value for name, value in os.environ.items() if name.startswith(CARRIED_PREFIXES)}


class RankActor:
    """The class that Ray instantiates for each rank. Its methods run in the main thread, so signal handlers work there.

    Its module imports no torch: the answers of `place` and `listen` come at once, and all ranks import together, in `run`.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._store: object = None

    def place(self) -> Place:
        """Where this actor is. From now on it leads a process group, and sees its own GPUs alone: none where it has none.

        Ray leaves all of them visible to an actor that asked for none. NCCL reaches invisible devices of the same machine too.
        """
        import ray

        devices = tuple(str(device) for device in ray.get_gpu_ids())
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        return Place(
            node_id=ray.get_runtime_context().get_node_id(),
            host=host_name(),
            devices=devices,
            pid=os.getpid(),
            process_group=os.getpgrp(),
        )

    def listen(self, host: str) -> int:
        """The port on `host` at which this actor, rank 0, will serve the store."""
        self._listener = listen(host)
        return self._listener.getsockname()[1]

    def run(self, job: Job) -> bytes:
        """The packed outcome of the job. The driver kills the process afterwards: it must not leave through the interpreter."""
        report = pack(run_as_rank(partial(_work, job, self._serve), job.environment.world.rank))
        settle()
        return report

    def _serve(self) -> None:
        if self._listener is not None:
            self._store = serve_store(self._listener)


def _work(job: Job, serve: Callable[[], None]) -> Any:
    obey_signals()
    print_stacks_when_asked()
    print_at_driver(job.output_address, job.output_token, job.environment.world.rank)
    _enter(job)
    serve()
    return pickle.loads(job.function)()


def _enter(job: Job) -> None:
    """Make this process resemble its driver, at its own place among the ranks."""
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise MachineError(
            f"the folder of the run, {job.folder}, cannot be entered on node {host_name()}: {error.strerror}; "
            "start the run in a folder that all nodes share"
        ) from error
    sys.path[:] = [*job.search_path, *(entry for entry in sys.path if entry not in job.search_path)]
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's own choice: the CPUs of the actor, even where the machine has fewer
    os.environ.update(job.variables)
    os.environ.update(job.environment.variables())
    if job.environment.master_addr == LOOPBACK:
        stay_on_loopback()
    else:
        meet_across_nodes(job.environment.master_addr)
    threads = threads_per_rank(job.environment.local.size)
    limit_threads(threads if "OMP_NUM_THREADS" in os.environ else min(threads, job.num_cpus))
