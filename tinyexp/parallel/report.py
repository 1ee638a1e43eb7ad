"""What a step sends: predicted from the plan, and counted while it runs.

Bytes are those that one rank puts on the wire. With n ranks in a group and S bytes in the whole tensor, a ring all-reduce sends
2 (n - 1) / n * S, an all-gather or a reduce-scatter (n - 1) / n * S.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tinyexp.parallel.schedule import Branch

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND = "all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"
TRIPS = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, BROADCAST: 1}  # how often (n - 1) / n of the whole tensor is sent
BRANCH_TRAFFIC = {  # of entering and leaving a branch, in forward and backward together
    "sharded": ((ALL_GATHER, REDUCE_SCATTER), (REDUCE_SCATTER, ALL_GATHER)),
    "replicated": ((ALL_REDUCE,), (ALL_REDUCE,)),
}
OPERATIONS = {
    "allreduce_": ALL_REDUCE,
    "_allgather_base_": ALL_GATHER,
    "_reduce_scatter_base_": REDUCE_SCATTER,
    "all_reduce": ALL_REDUCE,  # from here on those that DTensor calls
    "all_gather_into_tensor": ALL_GATHER,
    "reduce_scatter_tensor": REDUCE_SCATTER,
    "broadcast_": BROADCAST,  # DistributedDataParallel orders its buckets in the second step
    "send": SEND,
}
SENDS_NOTHING = ("recv_", "wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class Traffic:
    """Calls of one kind, and the bytes that they put on the wire from one rank."""

    kind: str
    calls: int
    sent_bytes: int
    purpose: str = ""


def branch_traffic(
    branches: Sequence[Branch], *, activations: str, tp_size: int, num_chunks: int, shape: tuple[int, int, int], itemsize: int
) -> list[Traffic]:
    """What one forward and backward send around the branches, by collective; gloo's are made of sends, see `on_gloo`.

    `shape` is the residual stream on one rank, (images, tokens, dim); `itemsize` the bytes of a number in the compute dtype.
    """
    if tp_size == 1:
        return []
    images, tokens, dim = shape
    images_of_group = images * (tp_size if activations == "sharded" else 1)
    found = []
    for branch in branches:
        entering, tokens = tokens, branch.num_tokens or tokens
        for moved, kinds in zip((entering, tokens), BRANCH_TRAFFIC[activations], strict=True):
            for kind in kinds:
                size = images_of_group * moved * dim * itemsize
                found.append(Traffic(kind, min(num_chunks, images), sent_bytes(kind, size, tp_size), "activations"))
    return total(found)


def on_gloo(traffic: Iterable[Traffic], group_size: int) -> list[Traffic]:
    """The same where each gather and reduce-scatter is one send to each other rank (see `collectives`)."""
    swapped = (ALL_GATHER, REDUCE_SCATTER)
    return total(
        replace(line, kind=SEND, calls=line.calls * (group_size - 1)) if line.kind in swapped else line for line in traffic
    )


def gradient_traffic(bucket_bytes: Iterable[int], group_size: int) -> list[Traffic]:
    """The all-reduces of gradient buckets over a group."""
    if group_size == 1:
        return []
    return total(Traffic(ALL_REDUCE, 1, sent_bytes(ALL_REDUCE, size, group_size), "gradients") for size in bucket_bytes)


def total(traffic: Iterable[Traffic], *, by_purpose: bool = True) -> list[Traffic]:
    """One line a kind and purpose, or a kind."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for line in traffic:
        key = (line.purpose if by_purpose else "", line.kind)
        calls, size = sums.get(key, (0, 0))
        sums[key] = (calls + line.calls, size + line.sent_bytes)
    return [Traffic(kind, calls, size, purpose) for (purpose, kind), (calls, size) in sorted(sums.items())]


def sent_bytes(kind: str, whole_bytes: int, group_size: int) -> int:
    """What one rank sends of a tensor of which the whole has `whole_bytes`."""
    return TRIPS[kind] * whole_bytes * (group_size - 1) // group_size


class TrafficCounter(TorchDispatchMode):
    """Counts the collectives that torch dispatches inside a `with` block, backward included, in every group."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Traffic] = []

    @property
    def traffic(self) -> list[Traffic]:
        """One line a kind."""
        return total(self._seen)

    @property
    def calls(self) -> int:
        return sum(line.calls for line in self._seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls what it needs on plain tensors, and those calls come here
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and func._opname not in SENDS_NOTHING:
            kind = OPERATIONS.get(func._opname)
            assert kind is not None, f"a collective that this project does not use: {func}"
            group = next(group for group in map(_as_group, args) if group is not None)
            # The larger of input and output is the whole tensor, in all kinds.
            whole = max(leaf.nbytes for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor))
            self._seen.append(Traffic(kind, 1, whole if kind == SEND else sent_bytes(kind, whole, group.size())))
        return result


def _as_group(argument: object) -> dist.ProcessGroup | None:
    """The group that an argument stands for: c10d's operations take a boxed one, the functional ones its name."""
    if isinstance(argument, str) and argument.isdecimal():
        return dist.distributed_c10d._resolve_process_group(argument)  # pyright: ignore[reportArgumentType]
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return dist.ProcessGroup.unbox(argument)
    return None
