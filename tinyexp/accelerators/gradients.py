"""Average gradients over the mesh while backward still runs, and measure their norm with every parameter counted once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tinyexp.parallel.waiting import WAITING

BUCKET_BYTES = 25 * 2**20  # as torch's DistributedDataParallel


@dataclass(eq=False)
class Bucket:
    """Parameters whose gradients travel as one tensor."""

    group: ProcessGroup | None  # None: their gradients are whole where they are
    parameters: list[nn.Parameter] = field(default_factory=list)
    num_missing: int = 0  # gradients that this backward has not made yet
    flat: Tensor | None = None
    work: dist.Work | None = None

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)


class GradientAverager:
    """Sums each gradient over its group and divides it by the number of replicas.

    Buckets leave in one fixed order on every rank, each as soon as backward has made the gradients of it and of those before it.
    The divisor is the same for sharded and replicated parameters: the loss is a mean over replicas.
    """

    def __init__(self, parameters: Sequence[tuple[nn.Parameter, ProcessGroup | None]], *, replicas: int) -> None:
        """`parameters` in the model's order, each with the ranks whose gradients of it add up; the same order on every rank."""
        self._replicas = replicas
        self.buckets = _buckets(parameters)
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._note)
        self._start_over()

    def finish(self) -> None:
        """Wait until every gradient is averaged. Every rank must call it, after each backward."""
        self._send_complete()
        assert self._next == len(self.buckets), "a parameter took no part in the loss"
        for bucket in self.buckets:
            _take_average(bucket)
        self._start_over()

    def _note(self, parameter: Tensor) -> None:
        self._bucket_of[parameter].num_missing -= 1  # pyright: ignore[reportArgumentType]
        self._send_complete()

    def _send_complete(self) -> None:
        while self._next < len(self.buckets) and self.buckets[self._next].num_missing == 0:
            _send(self.buckets[self._next], self._replicas)
            self._next += 1

    def _start_over(self) -> None:
        self._next = 0
        for bucket in self.buckets:
            bucket.num_missing = len(bucket.parameters)


def _buckets(parameters: Sequence[tuple[nn.Parameter, ProcessGroup | None]]) -> list[Bucket]:
    """Buckets of one group, one dtype and about BUCKET_BYTES, in the order in which backward, from the last parameter to the
    first, completes them."""
    filling: dict[object, Bucket] = {}
    complete: list[Bucket] = []
    for parameter, group in reversed(parameters):
        group = None if group is None or group.size() == 1 else group
        kind = (group, parameter.dtype)
        if kind in filling and filling[kind].nbytes + parameter.nbytes > BUCKET_BYTES:
            complete.append(filling.pop(kind))
        filling.setdefault(kind, Bucket(group)).parameters.append(parameter)
    return complete + list(filling.values())


def _send(bucket: Bucket, replicas: int) -> None:
    gradients = [_gradient(parameter) for parameter in bucket.parameters]
    if bucket.group is None:
        if replicas > 1:
            torch._foreach_div_(gradients, float(replicas))
        return
    bucket.flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(replicas)
    bucket.work = dist.all_reduce(bucket.flat, group=bucket.group, async_op=True)


def _take_average(bucket: Bucket) -> None:
    if bucket.work is None or bucket.flat is None:
        return
    with WAITING:
        bucket.work.wait()
    parts = bucket.flat.split([parameter.numel() for parameter in bucket.parameters])
    for parameter, part in zip(bucket.parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    bucket.flat = bucket.work = None


def total_norm(sharded: Sequence[Tensor], replicated: Sequence[Tensor], tp_group: ProcessGroup | None) -> Tensor:
    """The 2-norm of the gradient of the whole model, the same on every rank of the tp group.

    Each element counts once: squares of shards are summed over the tp group, replicated gradients are counted where they are.
    In float64, because float32 sums over DeiT-S's 22 million elements are wrong by up to 1.6e-5 of the norm, differently for
    every mesh. Every rank of the tp group must call it, after the gradients are averaged.
    """
    square = _square_norm(replicated)
    if sharded:
        of_shards = _square_norm(sharded)
        if tp_group is not None:
            dist.all_reduce(of_shards, group=tp_group)
        square = square + of_shards
    return square.sqrt()


def _square_norm(parameters: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm([_gradient(parameter) for parameter in parameters], 2, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "a parameter took no part in the loss"
    return parameter.grad
