"""DeiT's blocks written out for two ranks with sharded activations: what a careful engineer would write without an engine.

It shares nothing with the package but the two exchanges over the wire, which it waits for at once.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# timm types its blocks as plain modules, and this file reaches into them.

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from tinyexp.parallel.collectives import GATHER_IMAGES, REDUCE_SCATTER_IMAGES


class HandWrittenTP(nn.Module):
    """The timm model whose attention and MLP weights are this rank's half of the heads and of the hidden features."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.model = model
        self.shards = nn.ModuleList()
        for block in model.blocks:
            qkv, proj, fc1, fc2 = block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2
            shard = nn.ParameterDict(
                {
                    "qkv": torch.cat([part.chunk(size)[rank] for part in qkv.weight.chunk(3)]),
                    "qkv_bias": torch.cat([part.chunk(size)[rank] for part in qkv.bias.chunk(3)]),
                    "proj": proj.weight.chunk(size, dim=1)[rank].contiguous(),
                    "fc1": fc1.weight.chunk(size)[rank],
                    "fc1_bias": fc1.bias.chunk(size)[rank],
                    "fc2": fc2.weight.chunk(size, dim=1)[rank].contiguous(),
                }
            )
            self.shards.append(nn.ParameterDict({name: nn.Parameter(value.detach().clone()) for name, value in shard.items()}))
            block.attn.qkv = block.mlp.fc1 = None
            del proj.weight, fc2.weight

    def forward(self, images: Tensor) -> Tensor:
        model, group = self.model, dist.group.WORLD
        assert group is not None
        tokens = model._pos_embed(model.patch_embed(images))
        for block, shard in zip(model.blocks, self.shards, strict=True):
            entered = GATHER_IMAGES(block.norm1(tokens), group)
            qkv = F.linear(entered, shard["qkv"], shard["qkv_bias"])
            q, k, v = qkv.unflatten(-1, (3, -1, block.attn.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            tokens = tokens + REDUCE_SCATTER_IMAGES(F.linear(mixed, shard["proj"]), group) + block.attn.proj.bias
            entered = GATHER_IMAGES(block.norm2(tokens), group)
            hidden = F.gelu(F.linear(entered, shard["fc1"], shard["fc1_bias"]))
            tokens = tokens + REDUCE_SCATTER_IMAGES(F.linear(hidden, shard["fc2"]), group) + block.mlp.fc2.bias
        return model.forward_head(model.norm(tokens))

    def average_gradients(self) -> None:
        """Halve the gradients, and sum those of the replicated parameters."""
        size = dist.get_world_size()
        for parameter in self.shards.parameters():
            assert parameter.grad is not None
            parameter.grad /= size
        replicated = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in replicated if parameter.grad is not None]) / size
        dist.all_reduce(flat)
        for parameter, part in zip(replicated, flat.split([parameter.numel() for parameter in replicated]), strict=True):
            parameter.grad = part.view_as(parameter)
