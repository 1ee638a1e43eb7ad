"""Sum gradients over the mesh, and measure their norm with every parameter counted once."""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

BUCKET_BYTES = 25 * 2**20  # as torch's DistributedDataParallel


def average_gradients(parameters: Sequence[Tensor], group: ProcessGroup | None, replicas: int) -> None:
    """Sum the gradients over the ranks of `group` and divide by the number of replicas, in place.

    Every rank of the group must call it with parameters of the same shapes. `group=None` leaves out the sum, as where each
    gradient exists once. The divisor is the same for sharded and replicated parameters: the loss is a mean over replicas.
    """
    gradients = [_gradient(parameter) for parameter in parameters]
    if gradients and replicas > 1:
        torch._foreach_div_(gradients, float(replicas))
    if group is None or group.size() == 1:
        return
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat, group=group)
        parts = flat.split([gradient.numel() for gradient in bucket])
        torch._foreach_copy_(bucket, [part.view_as(gradient) for part, gradient in zip(parts, bucket, strict=True)])


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


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive gradients of one dtype, of about BUCKET_BYTES together."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size + gradient.nbytes > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket
