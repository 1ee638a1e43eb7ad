"""How a ViT of this folder is sharded. Read it beside `build`: every line is a module path of the model."""

from torch.distributed.tensor.parallel import ParallelStyle

from tinyexp.parallel.styles import ColwiseShard, EnterShards, RowwiseShard


def build_tp_parallelize_plan(activations: str = "sharded") -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module` over one tensor-parallel group: two collectives a block forward, two backward.

    `activations` is the layout of the residual stream, "sharded" (every rank its own images) or "replicated".
    """
    return {
        "blocks.*.attn": EnterShards(activations, divides="num_heads"),
        "blocks.*.attn.q": ColwiseShard(),
        "blocks.*.attn.k": ColwiseShard(),
        "blocks.*.attn.v": ColwiseShard(),
        "blocks.*.attn.proj": RowwiseShard(activations),
        "blocks.*.mlp": EnterShards(activations),
        "blocks.*.mlp.fc1": ColwiseShard(),
        "blocks.*.mlp.fc2": RowwiseShard(activations),
    }
