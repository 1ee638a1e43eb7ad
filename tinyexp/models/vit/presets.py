"""The sizes of the DeiT family (facebookresearch/deit models.py @ 7e160fe4), and one small enough for handwritten digits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ViTShape:
    """What distinguishes one vision transformer of the family from another. The MLP is four times as wide as the tokens."""

    patch_size: int  # pixels
    embed_dim: int
    depth: int  # blocks
    num_heads: int

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


PRESETS = {
    "deit_tiny_patch16_224": ViTShape(patch_size=16, embed_dim=192, depth=12, num_heads=3),
    "deit_small_patch16_224": ViTShape(patch_size=16, embed_dim=384, depth=12, num_heads=6),
    "deit_base_patch16_224": ViTShape(patch_size=16, embed_dim=768, depth=12, num_heads=12),
    "deit_digits_patch8_32": ViTShape(patch_size=8, embed_dim=96, depth=4, num_heads=6),
}
