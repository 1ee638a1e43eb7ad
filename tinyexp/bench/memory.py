"""What a rank holds in memory, counted tensor by tensor: the same on every machine, where a peak is the allocator's."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tinyexp.training.state import TrainState


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int  # what forward leaves for backward

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.average + self.activations


def held_bytes(state: TrainState, activations: int) -> HeldBytes:
    """The state of a rank that has taken a step, and the activations of one forward as `activation_bytes` counts them."""
    parameters = _nbytes(state.accelerator.parameters.by_name.values())
    return HeldBytes(
        parameters=parameters,
        gradients=parameters,
        optimizer=_nbytes(leaf for leaf in tree_leaves(dict(state.optimizer.state)) if isinstance(leaf, Tensor)),
        average=_nbytes(state.ema.average.values()) if state.ema is not None else 0,
        activations=activations,
    )


def activation_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes that are alive after a forward and were not before it: each storage once, whoever holds it.

    Hooks on saved tensors would not see what a checkpoint keeps. Backward is not run.
    """
    with _Allocations() as made:
        output = forward()
    alive = made.alive_bytes()
    return alive - output.untyped_storage().nbytes()


class _Allocations(TorchDispatchMode):
    """Remembers every storage that an operation inside the block puts out."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def alive_bytes(self) -> int:
        return sum(nbytes for reference, nbytes in self._made.values() if not reference.expired())

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in inputs:  # a view or an update makes nothing
                storage = leaf.untyped_storage()
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
