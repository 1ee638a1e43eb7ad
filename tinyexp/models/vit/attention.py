"""Self-attention whose query, key and value weights are three Linears, so that a column shard is a set of whole heads."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention of timm's ViT with the fused `qkv` split into `q`, `k`, `v` (deviation D1).

    The number of heads is read from the tensors (deviation D2): a rank that holds 3 of 6 heads runs the same code.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        qk_norm: bool = False,
        scale_norm: bool = False,
        norm_layer: type[nn.Module] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The arguments are those that timm's Block hands to its attention.

        Raises: ValueError for the two norms that DeiT leaves off, and for heads that do not divide `dim`.
        """
        super().__init__()
        if qk_norm or scale_norm:
            raise ValueError(f"attention with split q, k, v has no norms: got qk_norm={qk_norm}, scale_norm={scale_norm}")
        if dim % num_heads:
            raise ValueError(f"embed_dim={dim} is not a multiple of num_heads={num_heads}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_queries: int | None = None  # how many tokens ask and are put out, from the first on; None: all
        self.q = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.k = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.v = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(images, tokens, dim) -> (images, `num_queries` or all tokens, dim)."""
        if self.num_queries is None:
            q, k, v = self._heads(tokens, [self.q, self.k, self.v])
        else:
            (q,) = self._heads(tokens[:, : self.num_queries], [self.q])
            k, v = self._heads(tokens, [self.k, self.v])
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.attn_drop.p if self.training else 0.0, is_causal=is_causal
        )
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))

    def _heads(self, tokens: Tensor, projections: Sequence[nn.Linear]) -> Sequence[Tensor]:
        """(images, heads, tokens, head_dim) of each projection, all by one matrix product."""
        weight = _stacked([projection.weight for projection in projections])
        bias = None if projections[0].bias is None else _stacked([projection.bias for projection in projections])
        features = F.linear(tokens, weight, bias)
        return features.unflatten(-1, (len(projections), -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
