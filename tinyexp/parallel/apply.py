"""Shard a model by a plan, and put the ranks' parts together again."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from tinyexp.errors import ConfigError
from tinyexp.parallel.check import device_problems, plan_problems
from tinyexp.parallel.cut import Cut
from tinyexp.parallel.plan import Plan, pattern_of
from tinyexp.parallel.styles import ShardedLinear


def shard(model: nn.Module, tp_mesh: DeviceMesh, plan: Plan) -> nn.Module:
    """Shard the model in place over a one-dimensional mesh. Build the optimizer afterwards: the parameters are new ones.

    Every rank of the mesh must call it and hold the same weights.
    Raises: ConfigError that lists every way in which the plan does not fit.
    """
    problems = [*plan_problems(model, plan, tp_mesh.size()), *device_problems(model, tp_mesh.device_type)]
    if problems:
        raise ConfigError("the plan does not fit the model:\n  " + "\n  ".join(problems))
    return parallelize_module(model, tp_mesh, dict(plan))


class Parameters:
    """The trainable parameters of a model by name, each the whole tensor or this rank's part of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.by_name = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.cuts = dict(_cuts(model))

    def of_kind(self, *, sharded: bool) -> list[nn.Parameter]:
        """The sharded parameters, or the replicated ones, in the model's order."""
        return [parameter for name, parameter in self.by_name.items() if (name in self.cuts) == sharded]

    def gather(self, name: str, part: Tensor) -> Tensor:
        """The whole of a tensor that is cut as the parameter of this name is: itself, its gradient, average or moment.

        Every rank must call it.
        """
        return self.cuts[name].gather(part) if name in self.cuts else part.detach()

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor that belongs to the parameter of this name. Nothing is sent."""
        return self.cuts[name].part(whole) if name in self.cuts else whole

    def whole_shape(self, name: str) -> torch.Size:
        """The shape of the whole parameter, padding left out."""
        return _whole_shape(self.by_name[name], self.cuts.get(name))

    def num_whole(self) -> int:
        """Trainable numbers of the whole model."""
        return sum(self.whole_shape(name).numel() for name in self.by_name)

    def padding(self) -> str:
        """What is filled up with zeros, the names of all blocks as one; empty where everything divides."""
        found = {
            pattern_of(name): f"{cut.size} to {cut.padded}"
            for name, cut in self.cuts.items()
            if cut.padded > cut.size and name.endswith("weight")
        }
        return ", ".join(f"{pattern} from {sizes}" for pattern, sizes in found.items())

    def clear_gradients(self) -> None:
        for parameter in self.by_name.values():
            parameter.grad = None


@torch.no_grad()
def load_whole(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into the parameters and buffers of a model, sharded or not, strictly by name and shape.

    Raises: KeyError or ValueError for a model that the state does not fit; nothing is copied then.
    """
    own, cuts = model.state_dict(), dict(_cuts(model))
    if own.keys() != state.keys():
        raise KeyError(f"missing {sorted(own.keys() - state.keys())}, unexpected {sorted(state.keys() - own.keys())}")
    for name, value in own.items():
        shape = _whole_shape(value, cuts.get(name))
        if shape != state[name].shape:
            raise ValueError(f"{name} is {tuple(state[name].shape)}, the model has {tuple(shape)}")
    for name, value in own.items():
        value.copy_(cuts[name].part(state[name]) if name in cuts else state[name])


def assert_owns(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Stop unless the optimizer updates every trainable parameter of the model.

    An optimizer built before sharding holds the old whole tensors: training then changes nothing, and nothing raises.
    Raises: AssertionError that names the first parameters that would stay frozen.
    """
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    frozen = [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in owned]
    if frozen:
        raise AssertionError(
            f"the optimizer does not own {len(frozen)} parameters of the model ({', '.join(frozen[:3])}, …): "
            "it was built before the model was sharded or moved; build it afterwards"
        )


def _cuts(model: nn.Module) -> Iterator[tuple[str, Cut]]:
    for path, module in model.named_modules():
        if isinstance(module, ShardedLinear):
            for name, cut in module.cuts.items():
                yield f"{path}.{name}", cut


def _whole_shape(part: Tensor, cut: Cut | None) -> torch.Size:
    shape = list(part.shape)
    if cut is not None:
        shape[cut.dim] = cut.size
    return torch.Size(shape)
