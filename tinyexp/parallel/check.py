"""Everything about a plan that does not fit a model, found without a process group. The model may be on the meta device."""

import difflib
from collections.abc import Iterator

from torch import nn

from tinyexp.parallel.plan import Plan, matches, pattern_of
from tinyexp.parallel.styles import ColwiseShard, LinearStyle, ParallelBranches, RowwiseShard


def plan_problems(model: nn.Module, plan: Plan, tp_size: int) -> list[str]:
    """All problems of sharding `model` by `plan` over `tp_size` ranks, each named once; empty where it fits."""
    if tp_size == 1:
        return []
    return list(dict.fromkeys([*_unmatched(model, plan), *_unfit(model, plan), *_unpaired(plan)]))


def _unmatched(model: nn.Module, plan: Plan) -> Iterator[str]:
    for pattern in plan:
        if not matches(model, pattern):
            known = sorted({pattern_of(name) for name, _ in model.named_modules() if name})
            near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.0)
            yield f"plan path {pattern} matches no module; nearest: {near[0] if near else 'none, the model has no modules'}"


def _unfit(model: nn.Module, plan: Plan) -> Iterator[str]:
    for pattern, style in plan.items():
        for module in matches(model, pattern).values():
            name = type(module).__name__
            if isinstance(style, ParallelBranches) and not isinstance(module, nn.Sequential):
                yield f"{pattern}: ParallelBranches needs an nn.Sequential of blocks, a {name} is none"
            elif isinstance(style, LinearStyle) and not isinstance(module, nn.Linear):
                yield f"{pattern}: a {name} cannot be sharded; nn.Linear can"
            elif isinstance(style, LinearStyle):
                features = module.weight.shape[style.dim]  # pyright: ignore[reportIndexIssue]
                if features % style.unit:
                    yield f"{pattern}: {features} features are not whole units of {style.unit}"


def _unpaired(plan: Plan) -> Iterator[str]:
    """Within one parent module, columns need rows and rows need columns; both need the exchanges of the blocks above them."""
    rows, columns = (
        {pattern.rpartition(".")[0] for pattern, style in plan.items() if isinstance(style, kind)}
        for kind in (RowwiseShard, ColwiseShard)
    )
    streams = [pattern for pattern, style in plan.items() if isinstance(style, ParallelBranches)]
    for parent in sorted(columns - rows):
        yield f"{parent}: a ColwiseShard without a RowwiseShard; its output would stay cut"
    for parent in sorted(rows - columns):
        yield f"{parent}: a RowwiseShard without a ColwiseShard; its input would not be cut"
    for parent in sorted(columns | rows):
        if not any(parent.startswith(f"{stream}.") for stream in streams):
            yield f"{parent}: no ParallelBranches above it; its partial outputs and input gradients would not be summed"
    for stream in streams:
        if not any(parent.startswith(f"{stream}.") for parent in columns & rows):
            yield f"{stream}: ParallelBranches without a ColwiseShard and a RowwiseShard below it; each rank would add the whole"
