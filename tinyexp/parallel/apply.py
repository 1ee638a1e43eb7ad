"""Shard a model by a plan, and read whole tensors back from the shards."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from tinyexp.errors import ConfigError
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.plan import Plan
from tinyexp.parallel.styles import local


def shard(model: nn.Module, tp_mesh: DeviceMesh, plan: Plan) -> nn.Module:
    """Shard the model in place over a one-dimensional mesh. Build the optimizer afterwards: the parameters are new ones.

    Every rank of the mesh must call it and hold the same weights.
    Raises: ConfigError that lists every way in which the plan does not fit.
    """
    problems = plan_problems(model, plan, tp_mesh.size())
    if problems:
        raise ConfigError("the plan does not fit the model:\n  " + "\n  ".join(problems))
    return parallelize_module(model, tp_mesh, dict(plan))


def gather(tensor: Tensor) -> Tensor:
    """The whole tensor of a shard, or the tensor itself. Every rank of its mesh must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_like(part: Tensor, parameter: Tensor) -> Tensor:
    """The whole of a plain tensor that is cut as `parameter` is: its gradient, average or moment. Collective as `gather`."""
    if not isinstance(parameter, DTensor):
        return part
    whole = DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return whole.full_tensor()


def shard_like(whole: Tensor, parameter: Tensor) -> Tensor:
    """The part of a whole tensor that this rank holds of `parameter`. Nothing is sent."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    for placement in parameter.placements:
        if placement.is_shard():
            whole = whole.chunk(mesh.size(), dim=placement.dim)[mesh.get_local_rank()]  # pyright: ignore[reportAttributeAccessIssue]
    return whole.contiguous()


@torch.no_grad()
def load_whole(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into the parameters and buffers of a model, sharded or not, strictly by name and shape.

    Raises: KeyError or ValueError for a model that the state does not fit; nothing is copied then.
    """
    own = model.state_dict()
    if own.keys() != state.keys():
        raise KeyError(f"missing {sorted(own.keys() - state.keys())}, unexpected {sorted(state.keys() - own.keys())}")
    for name, value in own.items():
        if value.shape != state[name].shape:
            raise ValueError(f"{name} is {tuple(state[name].shape)}, the model has {tuple(value.shape)}")
    for name, value in own.items():
        local(value).copy_(shard_like(state[name], value))


class LocalParameters:
    """The tensors that an optimizer updates on this rank: every parameter without its DTensor wrapper, by name.

    They share storage with the model, so an update of one is an update of the other, and being plain tensors they take
    torch's fused optimizers, gradient scaler and clipping, which refuse a mixture of plain and sharded parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self.whole = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.by_name = {name: _unwrapped(parameter) for name, parameter in self.whole.items()}

    def names(self, *, sharded: bool) -> list[str]:
        """The sharded parameters, or the replicated ones, in the model's order."""
        return [name for name, parameter in self.whole.items() if isinstance(parameter, DTensor) == sharded]

    def take_gradients(self) -> None:
        """Hand each gradient that backward left on a sharded parameter to its local tensor. Nothing is copied."""
        for name, parameter in self.whole.items():
            if isinstance(parameter, DTensor):
                gradient = parameter.grad
                self.by_name[name].grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def clear_gradients(self) -> None:
        for name, parameter in self.whole.items():
            parameter.grad = None
            self.by_name[name].grad = None


def assert_owns(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Stop unless the optimizer updates the very storage of every trainable parameter of the model.

    An optimizer built before sharding holds the old whole tensors: training then changes nothing, and nothing raises.
    Raises: AssertionError that names the first parameters that would stay frozen.
    """
    owned = {local(parameter).data_ptr() for group in optimizer.param_groups for parameter in group["params"]}
    frozen = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and local(parameter.detach()).data_ptr() not in owned
    ]
    if frozen:
        raise AssertionError(
            f"the optimizer does not own {len(frozen)} parameters of the model ({', '.join(frozen[:3])}, …): "
            "it was built before the model was sharded or moved; build it afterwards"
        )


def _unwrapped(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(local(parameter.detach())) if isinstance(parameter, DTensor) else parameter
