"""A plan says which module is sharded how: a path with `*` for one level -> a style of `styles`."""

from collections.abc import Mapping
from typing import Protocol

from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

Plan = Mapping[str, ParallelStyle]


class PlanBuilder(Protocol):
    """Gives the plan of a model, for a layout of the residual stream and a number of chunks whose exchanges overlap."""

    def __call__(self, model: nn.Module, *, activations: str, overlap_chunks: int) -> Plan: ...


def pattern_of(name: str) -> str:
    """The path that stands for a module or parameter and for its like in the other blocks: `blocks.*.attn`."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def matches(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules that a path of a plan names, by full name. `*` stands for any one name: `blocks.*.attn`."""
    wanted = pattern.split(".")
    return {
        name: module
        for name, module in model.named_modules()
        if len(parts := name.split(".")) == len(wanted)
        and all(asked in ("*", part) for asked, part in zip(wanted, parts, strict=True))
    }
