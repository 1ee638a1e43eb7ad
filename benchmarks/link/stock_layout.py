"""The baseline: DeiT with q, k, v, fc1 column-wise and proj, fc2 row-wise by stock PyTorch styles, and nothing else.

This is the layout of PyTorch's tensor-parallel tutorial, which was measured for DeiT-S on two cards over PCIe: replicated
activations, each of q, k, v with an input of its own, no overlap.
"""

from functools import partial

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from tinyexp.models.vit.presets import ViTShape


class SeparateAttention(nn.Module):
    """q, k, v as three Linears that are called one by one."""

    def __init__(self, dim: int, num_heads: int, **_: object) -> None:
        super().__init__()
        self.head_dim = dim // num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = (projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in (self.q, self.k, self.v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def build_in_stock_layout(shape: ViTShape, *, img_size: int, num_classes: int, mesh: DeviceMesh | None) -> nn.Module:
    """The model, sharded over a one-dimensional mesh; the same on every rank. `mesh=None` leaves it whole."""
    model = build_timm(shape, img_size=img_size, num_classes=num_classes, attn_layer=SeparateAttention)
    if mesh is None:
        return model
    plan: dict[str, ParallelStyle] = {
        "blocks.*.attn.q": ColwiseParallel(),
        "blocks.*.attn.k": ColwiseParallel(),
        "blocks.*.attn.v": ColwiseParallel(),
        "blocks.*.attn.proj": RowwiseParallel(),
        "blocks.*.mlp.fc1": ColwiseParallel(),
        "blocks.*.mlp.fc2": RowwiseParallel(),
    }
    return parallelize_module(model, mesh, plan)


def build_timm(shape: ViTShape, *, img_size: int = 224, num_classes: int = 1000, **options: object) -> VisionTransformer:
    """timm's own model, the same on every rank."""
    torch.manual_seed(0)
    return VisionTransformer(
        img_size=img_size,
        patch_size=shape.patch_size,
        embed_dim=shape.embed_dim,
        depth=shape.depth,
        num_heads=shape.num_heads,
        num_classes=num_classes,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),  # pyright: ignore[reportArgumentType]
        **options,  # pyright: ignore[reportArgumentType]
    )
