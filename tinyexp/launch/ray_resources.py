"""What the workers of a Ray run ask for, and what a machine or a cluster has."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyexp.errors import MachineError


@dataclass(frozen=True)
class Bundle:
    """What one worker gets."""

    cpus: int
    gpus: float = 0.0

    def resources(self, num_workers: int = 1) -> dict[str, float]:
        """What workers of one node need together, in Ray's terms, which have no part of a GPU beyond the first."""
        gpus = num_workers * self.gpus
        if gpus > 1 and self.gpus < 1:
            gpus = math.ceil(num_workers / self._workers_per_gpu())
        return {"CPU": num_workers * self.cpus} | ({"GPU": gpus} if gpus else {})

    def fit(self, *, cpus: float | None, gpus: float) -> int:
        """How many workers one machine holds. `cpus` None: they do not limit it."""
        limits = [] if cpus is None else [int(cpus // self.cpus)]
        if self.gpus:
            # a worker's part of a GPU never spans two of them: 3 x 0.6 does not fit into 2 GPUs
            limits.append(int(gpus // self.gpus) if self.gpus >= 1 else int(gpus) * self._workers_per_gpu())
        assert limits, "a machine without limits holds any number of workers"
        return min(limits)

    def _workers_per_gpu(self) -> int:
        return int(1 / self.gpus + 1e-9)

    def times(self, num_workers: int) -> str:
        """`2 workers x (12 CPUs + 1 GPUs) = 24 CPUs, 2 GPUs`."""
        parts = [f"{self.cpus} CPUs"] + ([f"{self.gpus:g} GPUs"] if self.gpus else [])
        total = amounts({name: num_workers * each for name, each in self.resources().items()})
        return f"{num_workers} workers x ({' + '.join(parts)}) = {total}"


def amounts(resources: Mapping[str, float]) -> str:
    """`24 CPUs, 2 GPUs`, from Ray's terms."""
    return f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"


@dataclass(frozen=True)
class NodeGroup:
    """Consecutive ranks that must share a node. Which ranks, and why, only the caller knows."""

    size: int = 1  # 0: all ranks of the run
    advice: str = ""  # what else to set where the nodes are too small for it


ANY_NODE = NodeGroup()


def cluster_capacity(bundle: Bundle, group: NodeGroup) -> int:
    """How many workers the nodes of the connected cluster hold, were they all free, in whole groups.

    Raises: MachineError where all ranks must share a node and several nodes have room.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = [bundle.fit(cpus=node.get("CPU", 0), gpus=node.get("GPU", 0)) for node in nodes]
    if not group.size and sum(map(bool, room)) > 1:
        raise MachineError(
            f"ray_cfg.ray_num_worker=-1 would fill {len(room)} nodes with {sum(room)} workers, and all ranks of this run must "
            f"share a node; set ray_cfg.ray_num_worker={max(room)} or less, or {group.advice}"
        )
    size = group.size or 1
    return sum(each // size * size for each in room)


def shortage(bundle: Bundle, num_workers: int, group: NodeGroup, strategy: str, waited_s: float) -> str:
    """Why the connected cluster could not place the workers, with the asked and the available amounts."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    size = group.size or num_workers
    together = f", {size} of them always on one node" if size > 1 and len(nodes) > 1 else ""
    return (
        f"ray_cfg asks for {bundle.times(num_workers)}{together}, placed by ray_cfg.ray_placement_strategy={strategy}. "
        f"The cluster has {amounts(ray.cluster_resources())} on {len(nodes)} nodes{_each(nodes)}, of which "
        f"{amounts(ray.available_resources())} are free, and could not place them within "
        f"ray_cfg.ray_placement_timeout_s={waited_s:g}: lower ray_cfg.ray_num_worker, ray_cfg.ray_num_cpus_per_worker or "
        "ray_cfg.ray_num_gpus_per_worker, or wait longer" + (f", or set {group.advice}" if together else "")
    )


def _each(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The largest node, where there are several."""
    if len(nodes) < 2:
        return ""
    largest = max((node["Resources"] for node in nodes), key=lambda has: (has.get("GPU", 0), has.get("CPU", 0)))
    return f" (the largest has {amounts(largest)})"
