"""The three parallel styles of a transformer block, for `torch.distributed.tensor.parallel.parallelize_module`.

`EnterShards` stands on the attention or MLP as a whole, `ColwiseShard` and `RowwiseShard` on its Linears. Weights become
DTensors, so that torch can gather them; arithmetic and collectives run on the plain local tensors.

Why not torch's own styles: three `ColwiseParallel` on one input all-reduce its gradient three times, and each call goes
through DTensor dispatch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.parallel.collectives import copy_to_group, gather_images, reduce_scatter_images, sum_over_group

Collective = Callable[[Tensor, ProcessGroup], Tensor]


@dataclass(frozen=True)
class ActivationLayout:
    """Where the residual stream of a tensor-parallel group lives, as the two collectives that stand around its shards."""

    enter: Collective  # residual stream -> input of the column-parallel Linears
    leave: Collective  # partial output of the row-parallel Linear -> residual stream


ACTIVATION_LAYOUTS = {
    "sharded": ActivationLayout(enter=gather_images, leave=reduce_scatter_images),
    "replicated": ActivationLayout(enter=copy_to_group, leave=sum_over_group),
}


class EnterShards(ParallelStyle):
    """One collective for the common input of all column-parallel Linears of a module."""

    def __init__(self, activations: str, *, divides: str | None = None) -> None:
        """`divides` names the attribute of the module that the group size must divide, `num_heads` for attention."""
        super().__init__()
        self.layout = ACTIVATION_LAYOUTS[activations]
        self.divides = divides

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, enter = device_mesh.get_group(), self.layout.enter

        def collect(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return enter(_in_compute_dtype(inputs[0]), group), *inputs[1:]

        module.register_forward_pre_hook(collect)
        return module


class ColwiseShard(ParallelStyle):
    """Rows of weight and bias of a Linear over the group: each rank computes its own output features."""

    dim = 0  # of the weight

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            _distribute(module, name, parameter, device_mesh, Shard(0))
        module.__class__ = ColwiseLinear
        return module


class RowwiseShard(ParallelStyle):
    """Columns of the weight over the group: the ranks' partial outputs are summed, then the whole bias is added once."""

    dim = 1  # of the weight

    def __init__(self, activations: str) -> None:
        super().__init__()
        self.layout = ACTIVATION_LAYOUTS[activations]

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _distribute(module, "weight", module.get_parameter("weight"), device_mesh, Shard(1))
        module.__class__ = RowwiseLinear
        assert isinstance(module, RowwiseLinear)
        module.leave, module.group = self.layout.leave, device_mesh.get_group()
        return module


class ColwiseLinear(nn.Linear):
    """A Linear that holds some of its output features."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, local(self.weight), None if self.bias is None else local(self.bias))


class RowwiseLinear(nn.Linear):
    """A Linear that holds some of its input features."""

    leave: Collective
    group: ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        whole = self.leave(F.linear(input, local(self.weight)), self.group)
        return whole if self.bias is None else whole + self.bias.to(whole.dtype)


def local(parameter: Tensor) -> Tensor:
    """The part of a parameter that this rank holds; a plain tensor is its own part. Gradients flow back to the parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _distribute(module: nn.Module, name: str, parameter: nn.Parameter, mesh: DeviceMesh, placement: Shard) -> None:
    # Every rank already holds the same whole tensor (`src_data_rank=None`), so nothing is sent. The shard is copied: a view
    # would keep the whole tensor alive.
    shard = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
    shard = DTensor.from_local(
        shard.to_local().clone(memory_format=torch.contiguous_format),
        mesh,
        [placement],
        run_check=False,
        shape=shard.shape,
        stride=shard.stride(),
    )
    module.register_parameter(name, nn.Parameter(shard, requires_grad=parameter.requires_grad))


def _in_compute_dtype(tokens: Tensor) -> Tensor:
    """Cast as autocast would cast them for the next matrix product, so that no wider dtype crosses the wire."""
    device = tokens.device.type
    if torch.is_autocast_enabled(device) and tokens.is_floating_point():
        return tokens.to(torch.get_autocast_dtype(device))
    return tokens
