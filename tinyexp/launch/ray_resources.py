"""What the workers of a Ray run ask for, and what a machine or a cluster has."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bundle:
    """What one worker gets."""

    cpus: int
    gpus: float = 0.0

    def resources(self) -> dict[str, float]:
        """The bundle in Ray's terms."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def fit(self, *, cpus: float | None, gpus: float) -> int:
        """How many workers one machine holds. `cpus` None: they do not limit it."""
        limits = [] if cpus is None else [int(cpus // self.cpus)]
        if self.gpus:
            # a worker's part of a GPU never spans two of them: 3 x 0.6 does not fit into 2 GPUs
            limits.append(int(gpus // self.gpus) if self.gpus >= 1 else int(gpus) * int(1 / self.gpus + 1e-9))
        assert limits, "a machine without limits holds any number of workers"
        return min(limits)

    def times(self, num_workers: int) -> str:
        """`2 workers x (12 CPUs + 1 GPUs) = 24 CPUs, 2 GPUs`."""
        parts = [f"{self.cpus} CPUs"] + ([f"{self.gpus:g} GPUs"] if self.gpus else [])
        total = amounts({name: num_workers * each for name, each in self.resources().items()})
        return f"{num_workers} workers x ({' + '.join(parts)}) = {total}"


def amounts(resources: Mapping[str, float]) -> str:
    """`24 CPUs, 2 GPUs`, from Ray's terms."""
    return f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"


def cluster_capacity(bundle: Bundle) -> int:
    """How many workers the nodes of the connected cluster hold, were they all free."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(bundle.fit(cpus=node.get("CPU", 0), gpus=node.get("GPU", 0)) for node in nodes)


def shortage(bundle: Bundle, num_workers: int, strategy: str, waited_s: float) -> str:
    """Why the connected cluster could not place the workers, with the asked and the available amounts."""
    import ray

    return (
        f"ray_cfg asks for {bundle.times(num_workers)}, placed by ray_cfg.ray_placement_strategy={strategy}. The cluster has "
        f"{amounts(ray.cluster_resources())} on {len(ray.nodes())} nodes, of which {amounts(ray.available_resources())} are "
        f"free, and could not place them within ray_cfg.ray_placement_timeout_s={waited_s:g}: lower ray_cfg.ray_num_worker, "
        "ray_cfg.ray_num_cpus_per_worker or ray_cfg.ray_num_gpus_per_worker, or wait longer"
    )
