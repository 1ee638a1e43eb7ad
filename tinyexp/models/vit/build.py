"""timm's VisionTransformer, configured as DeiT has it, with attention that tensor parallelism can shard."""

import dataclasses
from dataclasses import dataclass
from functools import partial

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tinyexp.limits import Range, nearest, range_problems
from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.block import RECOMPUTATIONS, Block, Mlp
from tinyexp.models.vit.presets import PRESETS, ViTShape

SIZES = {  # wide enough for any vision transformer that has been published
    "img_size": Range(1, 16_384),
    "num_classes": Range(1, 1_000_000),
    "patch_size": Range(1, 1024),
    "embed_dim": Range(1, 65_536),
    "depth": Range(1, 512),
    "num_heads": Range(1, 1024),
}
RATES = dict.fromkeys(("drop_rate", "drop_path_rate"), Range(0, 0.99))


@dataclass
class ModuleCfg:
    """Which vision transformer, and from which weights it starts."""

    model_name: str = "deit_small_patch16_224"  # a preset of tinyexp/models/vit/presets.py; DeiT main.py --model
    img_size: int = 224  # pixels; the position embedding has (img_size / patch_size)^2 + 1 rows; DeiT main.py --input-size
    num_classes: int = 1000  # outputs of the head
    drop_rate: float = 0.0  # dropout after position embedding, attention projection and MLP; DeiT main.py --drop
    drop_path_rate: float = 0.1  # stochastic depth of the last block, rising from 0; DeiT main.py --drop-path
    pretrained_from: str = ""  # path or https URL of an official checkpoint; the hash in a URL's name is checked
    patch_size: int | None = None  # pixels; null: the preset's
    embed_dim: int | None = None  # features of a token; null: the preset's
    depth: int | None = None  # blocks; null: the preset's
    num_heads: int | None = None  # attention heads of a block; null: the preset's
    class_token_tail: bool = True  # the last block computes the class token only, which is all that the head reads; exact
    recompute: str = "none"  # what backward computes again to save memory: none, gelu (the MLP's activation) or block

    def shape(self) -> ViTShape:
        """The preset's sizes with the overrides of this configuration."""
        overrides = {field.name: getattr(self, field.name) for field in dataclasses.fields(ViTShape)}
        return dataclasses.replace(
            PRESETS[self.model_name], **{name: value for name, value in overrides.items() if value is not None}
        )

    def problems(self) -> list[str]:
        """Everything in this configuration that no model can have, each with its dotted key."""
        if self.model_name not in PRESETS:
            near = nearest(self.model_name, PRESETS)
            return [f"module_cfg.model_name={self.model_name!r}: allowed are {', '.join(PRESETS)}{near}"]
        if self.recompute not in RECOMPUTATIONS:
            near = nearest(self.recompute, RECOMPUTATIONS)
            return [f"module_cfg.recompute={self.recompute!r}: allowed are {', '.join(RECOMPUTATIONS)}{near}"]
        found = list(range_problems("module_cfg.", self, SIZES | RATES))
        if not all(allowed.holds(size) for name, allowed in SIZES.items() if (size := getattr(self, name)) is not None):
            return found
        shape = self.shape()
        if shape.embed_dim % shape.num_heads:
            found.append(f"module_cfg.embed_dim={shape.embed_dim} is not a multiple of module_cfg.num_heads={shape.num_heads}")
        if self.img_size % shape.patch_size:
            found.append(f"module_cfg.img_size={self.img_size} is not a multiple of module_cfg.patch_size={shape.patch_size}")
        return found

    def build(self) -> VisionTransformer:
        """The model with its initial weights, on the default device; draws from torch's generator as timm does."""
        return build_vit(
            self.shape(),
            img_size=self.img_size,
            num_classes=self.num_classes,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
            class_token_tail=self.class_token_tail,
            recompute=self.recompute,
        )


def build_vit(
    shape: ViTShape,
    *,
    img_size: int = 224,
    num_classes: int = 1000,
    drop_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    class_token_tail: bool = True,
    recompute: str = "none",
) -> VisionTransformer:
    """A ViT of the given shape: class token, learned position embedding, LayerNorm eps 1e-6, qkv bias, MLP ratio 4.

    `drop_rate` is the one rate of timm 0.3.2, which today's timm splits into a position and a projection rate. Above 0 the last
    block computes all tokens whatever `class_token_tail` says, so that dropout draws as timm does.
    """
    model = VisionTransformer(
        img_size=img_size,
        patch_size=shape.patch_size,
        embed_dim=shape.embed_dim,
        depth=shape.depth,
        num_heads=shape.num_heads,
        num_classes=num_classes,
        mlp_ratio=4.0,
        qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),  # pyright: ignore[reportArgumentType]
        pos_drop_rate=drop_rate,
        proj_drop_rate=drop_rate,
        drop_path_rate=drop_path_rate,
        attn_layer=Attention,
        mlp_layer=Mlp,
        block_fn=Block,
    )
    *_, last = blocks = [block for block in model.blocks if isinstance(block, Block)]
    if class_token_tail and not drop_rate:
        last.compute_first(model.num_prefix_tokens)
    for block in blocks:
        block.recompute(recompute)
    return model


def deit_tiny_patch16_224(**options: object) -> VisionTransformer:
    """DeiT-Ti: 5,717,416 parameters, 3 heads."""
    return build_vit(PRESETS["deit_tiny_patch16_224"], **options)  # pyright: ignore[reportArgumentType]


def deit_small_patch16_224(**options: object) -> VisionTransformer:
    """DeiT-S: 22,050,664 parameters, 6 heads."""
    return build_vit(PRESETS["deit_small_patch16_224"], **options)  # pyright: ignore[reportArgumentType]


def deit_base_patch16_224(**options: object) -> VisionTransformer:
    """DeiT-B: 86,567,656 parameters, 12 heads."""
    return build_vit(PRESETS["deit_base_patch16_224"], **options)  # pyright: ignore[reportArgumentType]
