"""Between the official fused `attn.qkv` and the split `attn.q`, `attn.k`, `attn.v` of this project (deviation D1).

Works on any mapping whose keys are parameter names: weights, averages of weights, optimizer moments.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

_SPLIT = ("q", "k", "v")


def convert_fused_qkv_to_split(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same state with every `*.qkv.*` tensor cut into its q, k and v rows, in place of the fused entry.

    timm stacks the fused rows as all of q, all of k, all of v.
    Raises: ValueError for a fused tensor whose rows do not divide by three.
    """
    split: dict[str, Tensor] = {}
    for name, value in state.items():
        head, fused, tail = name.rpartition(".qkv.")
        if not fused:
            split[name] = value
            continue
        if value.shape[0] % 3:
            raise ValueError(f"{name} has {value.shape[0]} rows; a fused qkv tensor stacks three equal parts")
        for part, rows in zip(_SPLIT, value.chunk(3), strict=True):
            split[f"{head}.{part}.{tail}"] = rows
    return _weights_before_biases(split)


def convert_split_qkv_to_fused(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The exact inverse of `convert_fused_qkv_to_split`, keys in timm's order.

    Raises: ValueError that names the parts of an attention that are missing.
    """
    fused: dict[str, Tensor] = {}
    for name, value in state.items():
        module, _, tail = name.rpartition(".")
        parent, _, part = module.rpartition(".")
        if part not in _SPLIT or not parent.endswith("attn"):
            fused[name] = value
        elif part == "q":
            parts = [f"{parent}.{other}.{tail}" for other in _SPLIT]
            missing = [other for other in parts if other not in state]
            if missing:
                raise ValueError(f"cannot fuse {parent}.qkv.{tail}: missing {', '.join(missing)}")
            fused[f"{parent}.qkv.{tail}"] = torch.cat([state[other] for other in parts])
        elif f"{parent}.q.{tail}" not in state:
            raise ValueError(f"cannot fuse {parent}.qkv.{tail}: missing {parent}.q.{tail}")
    return fused


def _weights_before_biases(split: dict[str, Tensor]) -> dict[str, Tensor]:
    """Order q.weight, q.bias, k.weight, … as the modules have it; the fused order gives q.weight, k.weight, … first."""
    ordered: dict[str, Tensor] = {}
    for name in split:
        stem = name.rpartition(".")[0]
        for tail in ("weight", "bias"):
            if f"{stem}.{tail}" in split:
                ordered.setdefault(f"{stem}.{tail}", split[f"{stem}.{tail}"])
        ordered.setdefault(name, split[name])
    return ordered
