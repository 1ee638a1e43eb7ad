"""Loss scaling for fp16, with one verdict about an overflow for all parameters and ranks."""

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def build_grad_scaler(device: torch.device, *, fp16: bool) -> GradScaler:
    """A scaler whose `step` skips on every rank when any rank found an overflow; switched off unless fp16 is on."""
    if fp16 and dist.is_initialized():
        return ShardedGradScaler(device.type, process_group=dist.group.WORLD)
    return GradScaler(device.type, enabled=fp16)
