"""Where a ViT's class token looks, recomputed from what enters each attention. For a model that is not sharded.

The fused attention of `attention.py` never forms its weights; here they come from the same queries and keys.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.block import Block


@dataclass(frozen=True)
class ClassAttention:
    """How each image's class token attends to the patches: maps (images, rows, columns), each at most 1 in sum."""

    logits: Tensor  # (images, classes), what the model answered
    last_block: Tensor  # of the last block, mean over its heads
    rollout: Tensor  # through all blocks


@torch.no_grad()
def class_attention(model: VisionTransformer, images: Tensor) -> ClassAttention:
    """One forward of images (B, 3, H, W), and the maps. The model is left in evaluation mode.

    The rollout is that of Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (arXiv:2005.00928, section 3): with A
    the attention of a block, mean over heads, and I the residual connection, (A + I) / 2 of all blocks multiplied; the class
    token's row of it.
    """
    model.eval()
    weights: list[Tensor] = []
    with _attentions(model, weights):
        logits = model(images)
    last = weights[-1][:, :1]
    row = (last + torch.eye(1, last.shape[-1])) / 2
    for attention in reversed(weights[:-1]):
        row = (row + row @ attention) / 2
    return ClassAttention(logits, _on_grid(model, last), _on_grid(model, row))


def attention_weights(attention: Attention, tokens: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)), mean over heads: (images, tokens, dim) -> (images, asking tokens, tokens)."""
    asking = tokens if attention.num_queries is None else tokens[:, : attention.num_queries]
    q, k = (
        projection(values).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for projection, values in ((attention.q, asking), (attention.k, tokens))
    )
    return (q @ k.transpose(-1, -2) / math.sqrt(attention.head_dim)).softmax(-1).mean(1)


@contextlib.contextmanager
def _attentions(model: VisionTransformer, weights: list[Tensor]) -> Iterator[None]:
    """Within the block, a forward leaves the attention weights of each block in the list."""

    def note(attention: Attention, inputs: tuple[Tensor, ...]) -> None:
        weights.append(attention_weights(attention, inputs[0]))

    hooks = [block.attn.register_forward_pre_hook(note) for block in model.blocks if isinstance(block, Block)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _on_grid(model: VisionTransformer, row: Tensor) -> Tensor:
    """(images, 1, tokens) -> (images, rows, columns) of patches, the class token itself left out."""
    return row[:, 0, model.num_prefix_tokens :].unflatten(-1, model.patch_embed.grid_size)
