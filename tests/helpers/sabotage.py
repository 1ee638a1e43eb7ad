"""Known ways to get tensor parallelism wrong. Each changes what `place` of an accelerator does to the model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tinyexp.accelerators.base import Accelerator
from tinyexp.models.vit.attention import Attention
from tinyexp.parallel.apply import load_whole
from tinyexp.parallel.collectives import COPY_TO_GROUP, Exchange, Pending
from tinyexp.parallel.schedule import ParallelBlocks


def cut_qkv_contiguously(accelerator: Accelerator) -> None:
    """Give each of two ranks a contiguous half of the stacked q, k, v rows, as a plain column split of the fused weight does."""
    place = accelerator.place

    def place_permuted(model: nn.Module) -> nn.Module:
        state = model.state_dict()
        for name in [name for name in state if ".attn.q." in name]:
            stacked = torch.cat([state[name.replace(".q.", f".{part}.")] for part in "qkv"])
            parts = torch.stack([torch.stack(half.chunk(3)) for half in stacked.chunk(2)])  # (rank, part, rows, ...)
            for index, part in enumerate("qkv"):
                state[name.replace(".q.", f".{part}.")] = parts[:, index].flatten(0, 1)
        load_whole(model, state)
        return place(model)

    accelerator.place = place_permuted


def enter_each_of_q_k_v(accelerator: Accelerator) -> None:
    """Sum the gradient of the attention's input three times, once for each of q, k, v."""

    def change(blocks: ParallelBlocks) -> None:
        blocks.layout = replace(blocks.layout, enter=NO_EXCHANGE)
        enter_all = [_enter_attention_three_times, _enter_once] * (len(blocks.branches) // 2)
        blocks.branches = [
            replace(branch, body=partial(enter, branch.body, blocks.group))
            for enter, branch in zip(enter_all, blocks.branches, strict=True)
        ]

    _change_blocks(accelerator, change)


def enter_none(accelerator: Accelerator) -> None:
    """Never sum the gradient of what enters attention and MLP."""

    def change(blocks: ParallelBlocks) -> None:
        blocks.layout = replace(blocks.layout, enter=NO_EXCHANGE)

    _change_blocks(accelerator, change)


def _stay(tokens: Tensor, group: ProcessGroup) -> Pending:
    return lambda: tokens.view_as(tokens)


NO_EXCHANGE = Exchange(ahead=_stay, back=_stay)


def _change_blocks(accelerator: Accelerator, change: Callable[[ParallelBlocks], None]) -> None:
    place = accelerator.place

    def place_changed(model: nn.Module) -> nn.Module:
        placed = place(model)
        change(model.get_submodule("blocks"))  # pyright: ignore[reportArgumentType]
        return placed

    accelerator.place = place_changed


def _enter_once(body: Callable[[Tensor], Tensor], group: ProcessGroup, tokens: Tensor) -> Tensor:
    return body(COPY_TO_GROUP(tokens, group))


def _enter_attention_three_times(attention: Attention, group: ProcessGroup, tokens: Tensor) -> Tensor:
    q, k, v = (
        projection(entered).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for projection in (attention.q, attention.k, attention.v)
        for entered in [COPY_TO_GROUP(tokens, group)]
    )
    if attention.num_queries is not None:
        q = q[:, :, : attention.num_queries]
    return attention.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
