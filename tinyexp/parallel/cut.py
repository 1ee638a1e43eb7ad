"""How one parameter is cut into the parts of the ranks, and put together again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True)
class Cut:
    """A dim of a tensor in equal parts over a one-dimensional mesh.

    Units that do not divide are filled up with zeros at the end. For heads that is exact: zero rows of q, k, v and zero columns
    of the projection get zero gradients, and AdamW leaves a zero weight with zero gradients where it is, with or without decay.
    The same holds for hidden features whose activation of 0 is 0.
    """

    mesh: DeviceMesh
    dim: int
    size: int  # of the whole dim
    unit: int = 1  # rows or columns that stay together; size is a multiple of it

    @property
    def padded(self) -> int:
        """The size of the dim with its zeros."""
        return padded_size(self.size, self.unit, self.mesh.size())

    def part(self, whole: Tensor) -> Tensor:
        """A copy of this rank's part of a whole tensor. Nothing is sent."""
        missing = self.padded - self.size
        if missing:
            whole = F.pad(whole, (0, 0) * (whole.dim() - 1 - self.dim) + (0, missing))
        return whole.chunk(self.mesh.size(), dim=self.dim)[self.mesh.get_local_rank()].clone()

    def gather(self, part: Tensor) -> Tensor:
        """The whole of a tensor that is cut in this way: a weight, its gradient, average or moment. Every rank must call it."""
        whole = DTensor.from_local(part.detach(), self.mesh, [Shard(self.dim)], run_check=False).full_tensor()
        return whole.narrow(self.dim, 0, self.size)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole of a tensor from the parts of all ranks, in their order. Nothing is sent."""
        whole = torch.cat(list(parts), dim=self.dim)
        return whole if self.padded == self.size else whole.narrow(self.dim, 0, self.size).clone()


def padded_size(size: int, unit: int, num_parts: int) -> int:
    """The next size above or at `size` whose units divide by the number of parts."""
    units = -(-size // unit)
    return -(-units // num_parts) * num_parts * unit
