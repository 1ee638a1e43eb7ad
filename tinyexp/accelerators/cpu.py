"""One process without a process group."""

from typing import final

import torch
from torch import nn
from torch.distributed import ProcessGroup

from tinyexp.accelerators.base import Accelerator
from tinyexp.parallel.mesh import Mesh
from tinyexp.process import Axis


@final
class CPUAccelerator(Accelerator):
    """The plain loop in one process: the reference that the others are compared with."""

    def __init__(self, *, device: torch.device | None = None, precision: str = "fp32", replica: Axis | None = None) -> None:
        """`replica` lets this process play one of several replicas, with its images, random stream and global batch."""
        super().__init__(world=Axis(), mesh=Mesh(Axis(), Axis()), device=device or torch.device("cpu"), precision=precision)
        self._replica = replica or Axis()

    @property
    def replica(self) -> Axis:
        return self._replica

    @property
    def replica_group(self) -> ProcessGroup | None:
        return None

    def place(self, model: nn.Module) -> nn.Module:
        return model

    def reduce_gradients(self) -> None:
        pass
