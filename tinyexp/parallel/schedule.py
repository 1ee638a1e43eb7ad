"""In which order the ranks of a group compute and exchange.

Attention and MLP of a block are branches of the residual stream: norm, enter, body, leave, add. The batch goes through in
chunks, each a generator that pauses whenever one of its exchanges is on the wire, and the chunks take turns: while one waits,
the next computes. Backward runs the same turns in reverse without being told (see `collectives`).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from tinyexp.parallel.collectives import COPY_TO_GROUP, GATHER_IMAGES, REDUCE_SCATTER_IMAGES, SUM_OVER_GROUP, Exchange


@dataclass(frozen=True)
class ActivationLayout:
    """Where the residual stream of a tensor-parallel group lives, as the two exchanges that stand around its branches."""

    enter: Exchange  # residual stream -> input of the column-parallel Linears
    leave: Exchange  # partial output of the row-parallel Linear -> residual stream


ACTIVATION_LAYOUTS = {
    "sharded": ActivationLayout(enter=GATHER_IMAGES, leave=REDUCE_SCATTER_IMAGES),
    "replicated": ActivationLayout(enter=COPY_TO_GROUP, leave=SUM_OVER_GROUP),
}


@dataclass(frozen=True)
class Branch:
    """What is added to the residual stream: drop_path(scale(body(norm(tokens)))), the body cut over the group."""

    norm: nn.Module
    body: Callable[[Tensor], Tensor]  # column-parallel Linears, then a row-parallel one: whole input -> partial output
    rows: nn.Linear  # the row-parallel Linear, whose bias is added to the sum
    scale: nn.Module
    drop_path: nn.Module
    num_tokens: int | None = None  # how many of its tokens the body computes, from the first on; None: all
    recomputes: bool = False  # backward computes the body again from what entered; no exchange is repeated

    def compute(self, entered: Tensor) -> Tensor:
        """The partial output of the body."""
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(self.body, entered, use_reentrant=False)
        return self.body(entered)


class ParallelBlocks(nn.Sequential):
    """Blocks of a transformer whose branches run on all ranks of a group. Every rank must call it, with equal batch sizes."""

    branches: Sequence[Branch]
    layout: ActivationLayout
    group: ProcessGroup
    num_chunks: int  # at most; a batch of fewer images has as many chunks as images

    def forward(self, input: Tensor) -> Tensor:
        """(B, tokens, dim), the residual stream before the first block -> the same after the last."""
        chunks = input.tensor_split(min(self.num_chunks, len(input)))
        masks = [_drop_path_mask(branch.drop_path, input) for branch in self.branches]
        sizes = [len(chunk) for chunk in chunks]
        masks_of_chunks = zip(*(mask.split(sizes) if mask is not None else [None] * len(chunks) for mask in masks), strict=True)
        finished = in_turns([self._walk(chunk, own) for chunk, own in zip(chunks, masks_of_chunks, strict=True)])
        return torch.cat(finished) if len(finished) > 1 else finished[0]

    def _walk(self, tokens: Tensor, masks: Sequence[Tensor | None]) -> Generator[None, None, Tensor]:
        """One chunk's way through all branches; it pauses where it has sent something and needs the answer."""
        for branch, mask in zip(self.branches, masks, strict=True):
            entered = self.layout.enter.depart(in_compute_dtype(branch.norm(tokens)), self.group)
            yield
            left = self.layout.leave.depart(branch.compute(entered()), self.group)
            yield
            total = left()
            if branch.rows.bias is not None:
                total = total + branch.rows.bias.to(total.dtype)
            total = branch.scale(total)
            tokens = tokens[:, : branch.num_tokens] + (total if mask is None else total * mask)
        return tokens


def in_turns(walks: Sequence[Generator[None, None, Tensor]]) -> list[Tensor]:
    """Advance each walk to its next pause, one after the other, until all have returned; their results in order."""
    results: dict[int, Tensor] = {}
    while len(results) < len(walks):
        for index, walk in enumerate(walks):
            if index not in results:
                try:
                    next(walk)
                except StopIteration as end:
                    results[index] = end.value
    return [results[index] for index in range(len(walks))]


def compute_dtype(tokens: Tensor) -> torch.dtype:
    """What autocast makes of the input of a matrix product."""
    device = tokens.device.type
    if torch.is_autocast_enabled(device) and tokens.is_floating_point():
        return torch.get_autocast_dtype(device)
    return tokens.dtype


def in_compute_dtype(tokens: Tensor) -> Tensor:
    """Cast as autocast would for the next matrix product, so that no wider dtype crosses the wire, back or forth."""
    return tokens.to(compute_dtype(tokens))


def _drop_path_mask(drop_path: nn.Module, tokens: Tensor) -> Tensor | None:
    """What drop-path multiplies the branch of each image by, drawn for the whole batch at once as without chunks."""
    ones = tokens.new_ones((len(tokens), 1, 1), dtype=compute_dtype(tokens))
    mask = drop_path(ones)
    return None if mask is ones else mask
