"""Tensor parallelism, alone or under data parallelism: a (dp, tp) mesh."""

from typing import final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.gradients import average_gradients
from tinyexp.parallel.apply import shard
from tinyexp.parallel.mesh import Mesh
from tinyexp.parallel.plan import PlanBuilder
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
    ) -> None:
        super().__init__(world=world, mesh=mesh, device=device, precision=precision)
        self.activations = activations
        self._overlap_chunks = overlap_chunks
        self._build_plan = build_plan

    @property
    def replica(self) -> Axis:
        return self.world if self.activations == "sharded" else self.mesh.dp

    @property
    def replica_group(self) -> ProcessGroup | None:
        if self.replica.size == 1:
            return None
        return dist.group.WORLD if self.activations == "sharded" else self.mesh.group("dp")

    def place(self, model: nn.Module) -> nn.Module:
        if self.mesh.tp.size > 1:
            assert self.mesh.device_mesh is not None
            plan = self._build_plan(model, activations=self.activations, overlap_chunks=self._overlap_chunks)
            shard(model, self.mesh.device_mesh["tp"], plan)
        return model

    def reduce_gradients(self) -> None:
        """A shard's gradient already holds the images of its whole tp group, and is summed over dp.

        A replicated parameter saw this replica's images only, and is summed over the replicas.
        """
        if self.world.size == 1:
            return
        for sharded, group in ((True, self.mesh.group("dp")), (False, self.replica_group)):
            average_gradients(self.parameters.of_kind(sharded=sharded), group, self.replica.size)
