"""Run a function on N Ray workers, of this machine or of a cluster."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinyexp.errors import ConfigError, MachineError
from tinyexp.launch.ray_cluster import cluster_address, is_connected, joined_cluster, private_ray
from tinyexp.launch.ray_placement import place
from tinyexp.launch.ray_ranks import running
from tinyexp.launch.ray_resources import ANY_NODE, Bundle, NodeGroup, cluster_capacity
from tinyexp.launch.report import results
from tinyexp.launch.restart import with_restarts
from tinyexp.launch.supervise import collect
from tinyexp.launch.worker import Outcome
from tinyexp.limits import SECONDS, Range, range_problems
from tinyexp.process import available_cores
from tinyexp.signals import StopRequest

RANGES = {
    "ray_num_worker": Range(1, 100_000, "-1 fills the machine or the cluster", special=-1),
    "ray_num_gpus_per_worker": Range(0.001, 1000.0, "0 runs on the CPU, below 1 several workers share a GPU", special=0),
    "ray_num_cpus_per_worker": Range(1, 100_000),
    "ray_placement_timeout_s": SECONDS,
}
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

logger = logging.getLogger("tinyexp")


@dataclass
class RayCfg:
    """How many workers Ray starts, and what each of them gets."""

    ray_num_worker: int = 1  # processes; -1: as many as the machine or the cluster holds
    ray_num_gpus_per_worker: float = 1.0  # GPUs; 0.0 runs on the CPU, below 1 several workers share one
    ray_num_cpus_per_worker: int = 1  # CPUs; on one local machine with fewer cores the workers share them, with a warning
    ray_placement_strategy: str = "PACK"  # over the nodes of a cluster: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD
    ray_placement_timeout_s: float = 120.0  # seconds; how long to wait for a cluster to have the resources

    def problems(self) -> list[str]:
        """What is wrong with the values, one line each, whatever the machine."""
        found = list(range_problems("ray_cfg.", self, RANGES))
        gpus = self.ray_num_gpus_per_worker
        if RANGES["ray_num_gpus_per_worker"].holds(gpus) and gpus > 1 and gpus != int(gpus):
            found.append(f"ray_cfg.ray_num_gpus_per_worker={gpus}; use 0.0 for the CPU, a part of one GPU, or a whole number")
        if self.ray_placement_strategy not in STRATEGIES:
            found.append(f"ray_cfg.ray_placement_strategy={self.ray_placement_strategy}; use one of {', '.join(STRATEGIES)}")
        return found


def num_workers(cfg: RayCfg) -> int | None:
    """How many processes a run will have; None where ray_num_worker=-1 leaves that to a cluster which is yet to be joined."""
    if cfg.ray_num_worker != -1:
        return cfg.ray_num_worker
    if _joins_cluster():
        return None
    if cfg.ray_num_gpus_per_worker:
        return _bundle(cfg).fit(cpus=None, gpus=gpus_here())
    return max(1, available_cores() // cfg.ray_num_cpus_per_worker)


def gpus_here() -> int:
    """The GPUs of this machine that this process may use. Asking does not initialise CUDA."""
    import torch

    return torch.cuda.device_count()


def check_resources(cfg: RayCfg) -> None:
    """Refuse at once, before Ray is started, what this machine can never give. A cluster is only asked once it is joined.

    Raises: MachineError when the workers ask for more GPUs than there are. CPUs may be oversubscribed.
    """
    if _joins_cluster() or not cfg.ray_num_gpus_per_worker:
        return
    present = gpus_here()
    asked, fitting = max(1, num_workers(cfg) or 1), _bundle(cfg).fit(cpus=None, gpus=present)
    if asked > fitting:
        each = cfg.ray_num_gpus_per_worker
        fewer = f", or ray_cfg.ray_num_worker={fitting} or less to use those that are there" if fitting else ""
        raise MachineError(
            f"ray_cfg asks for {asked} workers x {each:g} GPUs = {asked * each:g} GPUs, and this machine has {present}: "
            f"set ray_cfg.ray_num_gpus_per_worker=0.0 to run on the CPU{fewer}"
        )


def run_ray(
    fn: Callable[[], Any],
    cfg: RayCfg,
    *,
    preload: Sequence[str] = ("torch",),
    group: NodeGroup = ANY_NODE,
    max_restarts: int = 0,
) -> list[Any]:
    """The results of `fn()` in rank order, one rank for each Ray worker, ranks of a node next to each other.

    A private Ray is started for the run and leaves nothing behind; with RAY_ADDRESS set the cluster there is joined. `fn` is
    pickled by Ray's cloudpickle, and runs in the driver's folder, with its `sys.path`, in the main thread of its process.
    preload: modules that workers of a private Ray import while it is still starting.
    group: consecutive ranks that no placement may spread over nodes; its size divides ray_num_worker.
    max_restarts: how often all ranks start again, in a new placement, after a failure that may pass; they read
    `Environment.attempt`. Their number stays that of the first attempt.

    Raises: MachineError if the resources are not there, WorkerFailed that names the first rank to fail and its error,
    KeyboardInterrupt or SystemExit(143) when stopped. Whatever happens, no worker is left running.
    """
    if problems := cfg.problems():
        raise ConfigError("\n".join(problems))
    check_resources(cfg)
    with _ray(cfg, preload) as bundle, StopRequest() as stop:
        size = num_workers(cfg) or cluster_capacity(bundle, group)
        if not size:
            raise MachineError(
                f"ray_cfg.ray_num_worker=-1, but no node of the cluster has room for {bundle.times(group.size or 1)}"
            )

        def attempt(number: int) -> list[Outcome]:
            strategy, timeout_s = cfg.ray_placement_strategy, cfg.ray_placement_timeout_s
            placement = place(bundle, size, group=group, strategy=strategy, timeout_s=timeout_s, stop=stop)
            with running(fn, placement, num_cpus=cfg.ray_num_cpus_per_worker, attempt=number) as ranks:
                outcomes = collect(ranks, size, stop=stop)
            stop.raise_if_asked()
            return outcomes

        outcomes = with_restarts(attempt, size, max_restarts=max_restarts)
    return results(outcomes, size)


@contextlib.contextmanager
def _ray(cfg: RayCfg, preload: Sequence[str]) -> Iterator[Bundle]:
    """A connected Ray, and what to ask of it for one worker."""
    bundle = _bundle(cfg)
    if _joins_cluster():
        with joined_cluster(cluster_address()):
            yield bundle
        return
    asked, cores = (num_workers(cfg) or 1) * bundle.cpus, available_cores()
    if asked > cores:
        logger.warning(
            "ray_cfg asks for %s, and this machine has %d CPU cores: the run goes on and its workers share them "
            "(ray_cfg.ray_num_worker, ray_cfg.ray_num_cpus_per_worker)",
            bundle.times(num_workers(cfg) or 1),
            cores,
        )
    # One logical CPU a worker, whatever was asked: on a Ray of our own they limit nothing, and Ray starts a process for each
    with private_ray(num_cpus=num_workers(cfg) or 1, num_gpus=gpus_here(), preload=preload):
        yield Bundle(1, bundle.gpus)


def _joins_cluster() -> bool:
    return cluster_address() is not None or is_connected()


def _bundle(cfg: RayCfg) -> Bundle:
    return Bundle(cfg.ray_num_cpus_per_worker, cfg.ray_num_gpus_per_worker)
