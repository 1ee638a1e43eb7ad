"""Work for the ranks of a mesh. Starting processes takes seconds, so that one launch does all jobs of as many processes."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator


@dataclass(frozen=True)
class GoldenMesh:
    """Processes, and the recorded runs that they must reproduce: those of as many processes as the mesh has replicas."""

    name: str
    num_ranks: int
    replicas: int
    settings: tuple[tuple[str, Any], ...]  # of AcceleratorCfg

    def build(self, dtype: str) -> Accelerator:
        """This rank's accelerator for float32 ("f32") or float64 ("f64"). Every rank must call it."""
        return build_accelerator(**dict(self.settings), precision={"f32": "fp32", "f64": "fp64"}[dtype])


ONE_PROCESS = GoldenMesh("one_process", 1, 1, (("accelerator", "cpu"),))
TP_2_REPLICATED = GoldenMesh("tp_2_replicated", 2, 1, (("activations", "replicated"),))
DDP_2 = GoldenMesh("ddp_2", 2, 2, (("accelerator", "ddp"),))
TP_2_SHARDED = GoldenMesh("tp_2_sharded", 2, 2, (("activations", "sharded"),))
DP_2_TP_2_REPLICATED = GoldenMesh("dp_2_tp_2_replicated", 4, 2, (("activations", "replicated"), ("tp_size", 2)))

MESHES = (ONE_PROCESS, TP_2_REPLICATED, DDP_2, TP_2_SHARDED)


@dataclass(frozen=True)
class Job(ABC):
    """Something that all ranks of a mesh do together."""

    mesh: GoldenMesh

    @abstractmethod
    def run(self, folder: Path) -> Any:
        """What this rank finds. Every rank calls it; the folder is one for all ranks, and missing."""


def run_jobs(jobs: Sequence[Job]) -> dict[Job, list[Any]]:
    """What each job found, in rank order. The jobs take equal numbers of processes."""
    (num_ranks,) = {job.mesh.num_ranks for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_on_ranks(_run_on_rank, num_ranks, tuple(jobs), Path(folder))
    return {job: [rank[index] for rank in ranks] for index, job in enumerate(jobs)}


def _run_on_rank(jobs: tuple[Job, ...], folder: Path) -> list[Any]:
    torch.set_num_threads(1)
    return [job.run(folder / str(index)) for index, job in enumerate(jobs)]
