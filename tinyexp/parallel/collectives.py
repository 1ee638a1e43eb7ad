"""The collectives of a tensor-parallel block, as functions that autograd can walk back through.

Every rank of the group must call each of them, in the same order, with tensors of the same shape and dtype.
Each forward has its mirror image in backward:

    gather_images        forward all-gather     backward reduce-scatter
    reduce_scatter_images        reduce-scatter          all-gather
    copy_to_group                (nothing)               all-reduce
    sum_over_group               all-reduce              (nothing)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gather_images(images: Tensor, group: ProcessGroup) -> Tensor:
    """(B, ...) of this rank -> (group size * B, ...), the ranks' images in rank order."""
    return _GatherImages.apply(images, group)


def reduce_scatter_images(partial: Tensor, group: ProcessGroup) -> Tensor:
    """(group size * B, ...) partial sums -> (B, ...), the sum over the group of this rank's images."""
    return _ReduceScatterImages.apply(partial, group)


def copy_to_group(tokens: Tensor, group: ProcessGroup) -> Tensor:
    """The tokens themselves; every rank must hold the same. Their gradient is summed over the group."""
    return _CopyToGroup.apply(tokens, group)


def sum_over_group(partial: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group of the ranks' partial sums."""
    return _SumOverGroup.apply(partial, group)


def _all_gather(rows: Tensor, group: ProcessGroup) -> Tensor:
    gathered = rows.new_empty((group.size() * rows.shape[0], *rows.shape[1:]))
    dist.all_gather_single(gathered, rows.contiguous(), group=group)
    return gathered


def _reduce_scatter(rows: Tensor, group: ProcessGroup) -> Tensor:
    mine = (rows.shape[0] // group.size(), *rows.shape[1:])
    if dist.get_backend(group) != "gloo":
        reduced = rows.new_empty(mine)
        dist.reduce_scatter_single(reduced, rows.contiguous(), group=group)
        return reduced
    # gloo's reduce-scatter is an all-reduce inside and sends every row to every rank; exchanging the parts sends half of that.
    parts = torch.empty_like(rows, memory_format=torch.contiguous_format)
    dist.all_to_all_single(parts, rows.contiguous(), group=group)
    return parts.view(group.size(), *mine).sum(0)


def _all_reduce(values: Tensor, group: ProcessGroup) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Mirrored(torch.autograd.Function):
    """A collective of the group; autograd's context keeps the group for the way back."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ProcessGroup], output: Tensor) -> None:
        ctx.group = inputs[1]


class _GatherImages(_Mirrored):
    @staticmethod
    def forward(images: Tensor, group: ProcessGroup) -> Tensor:
        return _all_gather(images, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(gradients[0], ctx.group), None


class _ReduceScatterImages(_Mirrored):
    @staticmethod
    def forward(partial: Tensor, group: ProcessGroup) -> Tensor:
        return _reduce_scatter(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradients[0], ctx.group), None


class _CopyToGroup(_Mirrored):
    @staticmethod
    def forward(tokens: Tensor, group: ProcessGroup) -> Tensor:
        return tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradients[0], ctx.group), None


class _SumOverGroup(_Mirrored):
    @staticmethod
    def forward(partial: Tensor, group: ProcessGroup) -> Tensor:
        return _all_reduce(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
