"""Everything about a plan that does not fit a model, found without a process group. The model may be on the meta device."""

import difflib
from collections.abc import Iterator

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tinyexp.parallel.mesh import divisors
from tinyexp.parallel.plan import Plan, matches, pattern_of
from tinyexp.parallel.styles import ColwiseShard, LinearStyle, ParallelBranches, RowwiseShard

CUT = (Shard(-1),)  # the layout between a column-wise and a row-wise style of torch, unless the plan says otherwise


def plan_problems(model: nn.Module, plan: Plan, tp_size: int) -> list[str]:
    """All problems of sharding `model` by `plan` over `tp_size` ranks, each named once; empty where it fits.

    The plan may hold styles of ours or torch's ColwiseParallel and RowwiseParallel, of which torch itself checks little: a path
    that matches nothing is a warning there, and sizes that do not divide fail in the first forward, without a name.
    """
    if tp_size == 1:
        return []
    found = [
        *_unmatched(model, plan),
        *_unfit(model, plan),
        *_unpaired(plan),
        *_uneven(model, plan, tp_size),
        *_torch_unpaired(plan),
    ]
    return list(dict.fromkeys(found))


def device_problems(model: nn.Module, device_type: str) -> list[str]:
    """The parameters and buffers that do not lie where the ranks compute, in one line; a model without memory lies nowhere."""
    elsewhere = [
        (name, tensor.device.type)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.device.type not in (device_type, "meta")
    ]
    if not elsewhere:
        return []
    name, device = elsewhere[0]
    more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    return [f'{name}{more} on {device}, the mesh is of {device_type} devices; call model.to("{device_type}") before sharding']


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


def _uneven(model: nn.Module, plan: Plan, tp_size: int) -> Iterator[str]:
    """torch's styles leave uneven parts to the layers, which then do not fit each other; ours fill up with zeros."""
    for pattern, style in plan.items():
        if isinstance(style, (ColwiseParallel, RowwiseParallel)):
            for module in matches(model, pattern).values():
                if not isinstance(module, (nn.Linear, nn.Embedding)):
                    yield f"{pattern}: a {type(module).__name__} cannot be sharded; nn.Linear and nn.Embedding can"
                elif isinstance(module, nn.Linear):
                    kind, features = (
                        ("output", module.out_features) if isinstance(style, ColwiseParallel) else ("input", module.in_features)
                    )
                    if features % tp_size:
                        fitting = ", ".join(str(size) for size in divisors(features) if 1 < size <= 64)
                        yield (
                            f"{pattern}: {features} {kind} features are not equal parts on {tp_size} ranks; use "
                            + (f"{fitting} ranks, or " if fitting else "")
                            + f"{features + -features % tp_size} features"
                        )


def _torch_unpaired(plan: Plan) -> Iterator[str]:
    """Within one parent, a cut output needs a layer that takes it, and the other way round."""
    columns = {
        pattern.rpartition(".")[0]: pattern
        for pattern, style in plan.items()
        if isinstance(style, ColwiseParallel) and style.use_local_output and style.output_layouts == CUT
    }
    rows = {
        pattern.rpartition(".")[0]: pattern
        for pattern, style in plan.items()
        if isinstance(style, RowwiseParallel) and style.input_layouts == CUT
    }
    for parent in sorted(columns.keys() - rows.keys()):
        yield (
            f"{columns[parent]}: a ColwiseParallel without a RowwiseParallel beside it; its output would stay cut. "
            "Add the partner, or ColwiseParallel(output_layouts=Replicate())"
        )
    for parent in sorted(rows.keys() - columns.keys()):
        yield (
            f"{rows[parent]}: a RowwiseParallel without a ColwiseParallel beside it; its input would not be cut. "
            "Add the partner, or RowwiseParallel(input_layouts=Replicate())"
        )
