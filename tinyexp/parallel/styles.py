"""The parallel styles of a transformer, for `torch.distributed.tensor.parallel.parallelize_module`.

`ColwiseShard` and `RowwiseShard` cut the weights of a Linear, `ParallelBranches` puts the exchanges between ranks around every
attention and MLP of the blocks. A parameter becomes this rank's part of it, a plain tensor, and its module keeps how it was
cut, so that `apply` can make the whole of it again.

Why not torch's own styles: three `ColwiseParallel` on one input all-reduce its gradient three times, each call goes through
DTensor's dispatch, and no exchange can overlap with work.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.parallel.cut import Cut
from tinyexp.parallel.schedule import ACTIVATION_LAYOUTS, Branch, ParallelBlocks


class ShardedLinear(nn.Linear):
    """A Linear that holds a part of its features."""

    cuts: dict[str, Cut]  # of the parameters that are cut, by name; the others are whole


class RowwiseLinear(ShardedLinear):
    """A Linear with some of its input features. Its output is partial: the sum over the group, plus the bias once, is whole."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight)


class LinearStyle(ParallelStyle):
    """Cuts a Linear along one dim of its weight."""

    dim: int  # of the weight
    names: tuple[str, ...]  # of the parameters that are cut
    becomes: type[ShardedLinear]

    def __init__(self, *, unit: int = 1) -> None:
        """`unit` features stay together on one rank: head_dim around attention."""
        super().__init__()
        self.unit = unit

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        module.__class__ = self.becomes
        assert isinstance(module, ShardedLinear)
        cut = Cut(device_mesh, self.dim, module.weight.shape[self.dim], self.unit)
        module.cuts = {name: cut for name in self.names if getattr(module, name) is not None}
        for name in module.cuts:
            whole = module.get_parameter(name)
            module.register_parameter(name, nn.Parameter(cut.part(whole.detach()), requires_grad=whole.requires_grad))
        return module


class ColwiseShard(LinearStyle):
    """Rows of weight and bias over the group: each rank computes its own output features."""

    dim, names, becomes = 0, ("weight", "bias"), ShardedLinear


class RowwiseShard(LinearStyle):
    """Columns of the weight over the group, the bias whole: each rank computes a partial output."""

    dim, names, becomes = 1, ("weight",), RowwiseLinear


class ParallelBranches(ParallelStyle):
    """The exchanges around every branch of a sequence of blocks, and their overlap with the work of other chunks."""

    def __init__(self, activations: str, *, branches: Callable[[nn.Module], Sequence[Branch]], num_chunks: int = 1) -> None:
        """`branches` reads them from a block, in order. More than one chunk of the batch hides the wire behind the work."""
        super().__init__()
        self.layout = ACTIVATION_LAYOUTS[activations]
        self.branches = branches
        self.num_chunks = num_chunks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Sequential)
        branches = [branch for block in module for branch in self.branches(block)]
        module.__class__ = ParallelBlocks
        assert isinstance(module, ParallelBlocks)
        module.branches, module.layout, module.group = branches, self.layout, device_mesh.get_group()
        module.num_chunks = self.num_chunks
        return module
