"""Everything about a plan that does not fit a model, found without a process group. The model may be on the meta device."""

import difflib
from collections.abc import Iterator

from torch import nn

from tinyexp.parallel.mesh import divisors
from tinyexp.parallel.plan import Plan, matches
from tinyexp.parallel.styles import ColwiseShard, EnterShards, RowwiseShard


def plan_problems(model: nn.Module, plan: Plan, tp_size: int) -> list[str]:
    """All problems of sharding `model` by `plan` over `tp_size` ranks, each named once; empty where it fits."""
    if tp_size == 1:
        return []
    found = [
        *_unmatched(model, plan),
        *_indivisible(model, plan, tp_size),
        *_unpaired(model, plan),
    ]
    return list(dict.fromkeys(found))


def _unmatched(model: nn.Module, plan: Plan) -> Iterator[str]:
    for pattern in plan:
        if not matches(model, pattern):
            known = sorted({_pattern_of(name) for name, _ in model.named_modules() if name})
            near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.0)
            yield f"plan path {pattern} matches no module; nearest: {near[0] if near else 'none, the model has no modules'}"


def _indivisible(model: nn.Module, plan: Plan, tp_size: int) -> Iterator[str]:
    for pattern, style in plan.items():
        for module in matches(model, pattern).values():
            if isinstance(style, EnterShards) and style.divides:
                yield from _size_problem(f"{pattern}: {style.divides}", getattr(module, style.divides), tp_size)
            elif isinstance(style, ColwiseShard | RowwiseShard):
                if not isinstance(module, nn.Linear):
                    yield f"{pattern}: a {type(module).__name__} cannot be sharded; nn.Linear can"
                    continue
                kind = "out_features" if isinstance(style, ColwiseShard) else "in_features"
                yield from _size_problem(f"{pattern}: {kind}", module.weight.shape[style.dim], tp_size)


def _size_problem(what: str, size: int, tp_size: int) -> Iterator[str]:
    if size % tp_size:
        fitting = ", ".join(str(number) for number in divisors(size) if number <= max(16, tp_size))
        yield f"{what}={size} is not divisible by accelerator_cfg.tp_size={tp_size}; sizes that work: {fitting}"


def _unpaired(model: nn.Module, plan: Plan) -> Iterator[str]:
    """Within one parent module, columns need the collective before them and rows after them, and rows need columns."""
    rows = {pattern.rpartition(".")[0] for pattern, style in plan.items() if isinstance(style, RowwiseShard)}
    columns = {pattern.rpartition(".")[0] for pattern, style in plan.items() if isinstance(style, ColwiseShard)}
    entered = {pattern for pattern, style in plan.items() if isinstance(style, EnterShards)}
    for parent in sorted(columns - rows):
        yield f"{parent}: a ColwiseShard without a RowwiseShard; its output would stay cut"
    for parent in sorted(rows - columns):
        yield f"{parent}: a RowwiseShard without a ColwiseShard; its input would not be cut"
    for parent in sorted(columns - entered):
        yield f"{parent}: a ColwiseShard without EnterShards on {parent}; its input gradient would not be summed"
    for parent in sorted(entered - columns):
        yield f"{parent}: EnterShards without a ColwiseShard below it"


def _pattern_of(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
