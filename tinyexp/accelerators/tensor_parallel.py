"""Tensor parallelism, alone or under data parallelism: a (dp, tp) mesh."""

from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.gradients import GradientAverager
from tinyexp.parallel.apply import shard
from tinyexp.parallel.mesh import Mesh
from tinyexp.parallel.plan import PlanBuilder
from tinyexp.parallel.report import Traffic, branch_traffic, gradient_traffic, on_gloo, total
from tinyexp.parallel.schedule import ParallelBlocks
from tinyexp.parallel.waiting import WAITING
from tinyexp.process import Axis


@final
class TPAccelerator(Accelerator):
    """Shards the model over the tp axis by a plan.

    With sharded activations every rank is a replica of its own; with replicated ones a tp group is one replica.
    """

    def __init__(
        self,
        *,
        world: Axis,
        mesh: Mesh,
        device: torch.device,
        precision: str,
        activations: str,
        overlap_chunks: int,
        build_plan: PlanBuilder,
        on_gloo: bool,
    ) -> None:
        super().__init__(world=world, mesh=mesh, device=device, precision=precision)
        self.activations = activations
        self._overlap_chunks = overlap_chunks
        self._build_plan = build_plan
        self._on_gloo = on_gloo
        self._averager: GradientAverager | None = None

    @property
    def replica(self) -> Axis:
        return self.world if self.activations == "sharded" else self.mesh.dp

    @property
    def replica_group(self) -> ProcessGroup | None:
        if self.replica.size == 1:
            return None
        return dist.group.WORLD if self.activations == "sharded" else self.mesh.group("dp")

    @property
    def readers(self) -> Axis:
        return Axis() if self.activations == "sharded" else self.mesh.tp

    def gather_rows(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.device, non_blocking=True)
        gathered = rows.new_empty(self.readers.size * len(rows), *rows.shape[1:])
        dist.all_gather_single(gathered, rows.contiguous(), group=self.mesh.group("tp"))
        return gathered

    @property
    def waited_s(self) -> float | None:
        """On a GPU the stream waits, and this process does not notice."""
        return WAITING.seconds if self.world.size > 1 and self.device.type == "cpu" else None

    def place(self, model: nn.Module) -> nn.Module:
        if self.mesh.tp.size > 1:
            assert self.mesh.device_mesh is not None
            plan = self._build_plan(model, activations=self.activations, overlap_chunks=self._overlap_chunks)
            shard(model, self.mesh.device_mesh["tp"], plan)
        return model

    def prepare(self, model: nn.Module) -> nn.Module:
        training_model = super().prepare(model)
        if self.world.size > 1:
            groups = [
                (parameter, self.mesh.group("dp") if name in self.parameters.cuts else self.replica_group)
                for name, parameter in self.parameters.by_name.items()
            ]
            self._averager = GradientAverager(groups, replicas=self.replica.size)
        return training_model

    def traffic(self, residual_stream: tuple[int, int, int]) -> list[Traffic]:
        """The exchanges of every sequence of parallel blocks, and the gradients' buckets."""
        found = [
            line
            for blocks in self.model.modules()
            if isinstance(blocks, ParallelBlocks)
            for line in branch_traffic(
                blocks.branches,
                activations=self.activations,
                tp_size=self.mesh.tp.size,
                num_chunks=blocks.num_chunks,
                shape=residual_stream,
                itemsize=self.compute_dtype.itemsize,
            )
        ]
        if self._on_gloo:
            found = on_gloo(found, self.mesh.tp.size)
        buckets = self._averager.buckets if self._averager is not None else []
        for bucket in buckets:
            found += gradient_traffic([bucket.nbytes], bucket.group.size() if bucket.group is not None else 1)
        return total(found)

    def reduce_gradients(self) -> None:
        """A shard's gradient already holds the images of its whole tp group, and is summed over dp.

        A replicated parameter saw this replica's images only, and is summed over the replicas.
        """
        if self._averager is not None:
            self._averager.finish()
