"""timm's transformer block, which can leave out work that nothing reads, and memory that can be computed again."""

import torch
from timm.layers.mlp import Mlp as TimmMlp
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tinyexp.models.vit.attention import Attention

RECOMPUTATIONS = ("none", "gelu", "block")


class Mlp(TimmMlp):
    """timm's MLP, whose activation can be computed a second time in backward instead of being kept."""

    recomputes_activation: bool = False

    def forward(self, x: Tensor) -> Tensor:
        if not (self.recomputes_activation and torch.is_grad_enabled()):
            return super().forward(x)
        # The checkpoint keeps what enters it, and its second run stops where fc2 has its input back.
        return checkpoint(self._after_fc1, self.fc1(x), use_reentrant=False, preserve_rng_state=self.drop1.p > 0)

    def _after_fc1(self, hidden: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(hidden)))))


class Block(TimmBlock):
    """timm's block. Its attention must be `Attention`, its MLP `Mlp`."""

    attn: Attention
    mlp: Mlp
    num_tokens: int | None = None  # how many tokens are put out, from the first on; None: all
    recomputation: str = "none"  # of RECOMPUTATIONS

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(images, tokens, dim) -> (images, `num_tokens` or all tokens, dim)."""
        if self.recomputation == "block" and torch.is_grad_enabled():
            return checkpoint(self._compute, x, attn_mask, is_causal, use_reentrant=False)
        return self._compute(x, attn_mask, is_causal)

    def compute_first(self, num_tokens: int) -> None:
        """Put out the first tokens only, where nothing reads the others: keys and values still come from all of them."""
        self.num_tokens = self.attn.num_queries = num_tokens

    def recompute(self, what: str) -> None:
        """Choose what backward computes again."""
        self.recomputation = what
        self.mlp.recomputes_activation = what == "gelu"

    def _compute(self, x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        added = self.drop_path1(self.ls1(self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)))
        x = x[:, : self.num_tokens] + added
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
