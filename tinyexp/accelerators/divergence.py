"""Whether ranks still hold alike what they must hold alike: their weights and, within a replicated group, their images."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.errors import Diverged


def check_agreement(accelerator: Accelerator, *, step: int, batch: Sequence[Tensor] = ()) -> None:
    """Compare digests of every parameter over the ranks that share it, and of `batch` over those that read the same images.

    Every rank must call it. One gather of 8 bytes a parameter and rank, and one pass over this rank's weights.
    Raises: Diverged, the same on every rank, that names the ranks and what differs.
    """
    if accelerator.world.size == 1:
        return
    parameters, tp = accelerator.parameters, accelerator.mesh.tp.size
    names = [*parameters.by_name, *(f"tensor {index} of the batch" for index in range(len(batch)))]
    tensors = [*parameters.by_name.values(), *batch]
    found = accelerator.exchange([digest(tensor) for tensor in tensors])
    for index, name in enumerate(names):
        if name in parameters.cuts:
            kind, groups = "the same shard", [range(part, len(found), tp) for part in range(tp)]
        elif name in parameters.by_name:
            kind, groups = "the same parameter", [range(len(found))]
        else:
            replicas = accelerator.replica.size
            each = len(found) // replicas
            kind, groups = "the same images", [range(first, first + each) for first in range(0, len(found), each)]
        for ranks in groups:
            if odd := _odd_ones({rank: found[rank][index] for rank in ranks}):
                raise Diverged(
                    f"ranks hold different values at step {step}: {name} of {_listed(odd)} is not that of the other ranks with "
                    f"{kind} ({_listed([rank for rank in ranks if rank not in odd])}); nothing is saved from here on. "
                    "A rank that reads other files, another library version or faulty memory are the usual causes"
                )


def digest(tensor: Tensor) -> int:
    """CRC-32 of the tensor's bytes, taken on the host."""
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _odd_ones(values: dict[int, int]) -> list[int]:
    """The ranks that do not hold what most do; of two that differ, the second."""
    kept = list(values.values())
    usual = max(kept, key=lambda value: (kept.count(value), -kept.index(value)))
    return [rank for rank, value in values.items() if value != usual]


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
