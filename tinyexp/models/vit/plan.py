"""How a ViT of this folder is sharded. Read it beside `build`: every line is a module path of the model."""

from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.models.vit.block import Block
from tinyexp.parallel.schedule import Branch
from tinyexp.parallel.styles import ColwiseShard, ParallelBranches, RowwiseShard


def build_tp_parallelize_plan(
    model: nn.Module, *, activations: str = "sharded", overlap_chunks: int = 1
) -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module` over one tensor-parallel group: four exchanges a block and step.

    `activations` is the layout of the residual stream, "sharded" (every rank its own images) or "replicated". Heads stay whole,
    and where their number does not divide they are filled up with zeros. `overlap_chunks` hides the wire behind the work.
    """
    head_dim = model.get_submodule("blocks.0.attn").head_dim
    assert isinstance(head_dim, int)
    return {
        "blocks": ParallelBranches(activations, branches=branches, num_chunks=overlap_chunks),
        "blocks.*.attn.q": ColwiseShard(unit=head_dim),
        "blocks.*.attn.k": ColwiseShard(unit=head_dim),
        "blocks.*.attn.v": ColwiseShard(unit=head_dim),
        "blocks.*.attn.proj": RowwiseShard(unit=head_dim),
        "blocks.*.mlp.fc1": ColwiseShard(),
        "blocks.*.mlp.fc2": RowwiseShard(),
    }


def residual_stream(model: nn.Module, images: int) -> tuple[int, int, int]:
    """(images, tokens, dim) of what enters the first block."""
    assert isinstance(model, VisionTransformer)
    return images, model.patch_embed.num_patches + model.num_prefix_tokens, model.embed_dim


def branches(block: nn.Module) -> tuple[Branch, Branch]:
    """Attention and MLP of a block, as the residual stream meets them."""
    assert isinstance(block, Block)
    assert isinstance(block.mlp.fc2, nn.Linear)
    recomputes = block.recomputation == "block"
    return (
        Branch(
            block.norm1,
            block.attn,
            block.attn.proj,
            block.ls1,
            block.drop_path1,
            num_tokens=block.num_tokens,
            recomputes=recomputes,
        ),
        Branch(block.norm2, block.mlp, block.mlp.fc2, block.ls2, block.drop_path2, recomputes=recomputes),
    )
