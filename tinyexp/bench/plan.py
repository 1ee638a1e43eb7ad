"""`mode=plan`: what a run would shard, send and hold, found before any process starts."""

from collections.abc import Callable, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from torch import nn

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.parallel.apply import Parameters
from tinyexp.parallel.plan import PlanBuilder, pattern_of
from tinyexp.parallel.report import Traffic

OPTIMIZER_COPIES = 2  # AdamW's two moments


def plan_page(
    cfg: AcceleratorCfg,
    model: nn.Module,
    *,
    build_plan: PlanBuilder,
    residual_stream: Callable[[nn.Module, int], tuple[int, int, int]],
    num_processes: int,
    device_type: str,
    batch: int,
    averaged: bool,
) -> str:
    """The page as text. The model is on the meta device, the processes are pretended; the code is that of the run."""
    with cfg.pretended(num_processes, device_type, build_plan) as accelerator:
        accelerator.prepare(model)
        traffic = accelerator.traffic(residual_stream(model, batch))
        return _page(accelerator, traffic, label=cfg.label(accelerator.mesh.shape), averaged=averaged)


def _page(accelerator: Accelerator, traffic: Sequence[Traffic], *, label: str, averaged: bool) -> str:
    console = Console(file=StringIO(), width=120)
    parameters = accelerator.parameters
    console.print(f"{label}, {accelerator.world.size} processes, {accelerator.precision}", highlight=False)
    console.print(_sharding_table(parameters))
    console.print(_traffic_table(traffic))
    here, whole = sum(each.numel() for each in parameters.by_name.values()), parameters.num_whole()
    copies = {"parameters": 1, "gradients": 1, "optimizer": OPTIMIZER_COPIES, "average": int(averaged)}
    nbytes = here * accelerator.dtype.itemsize
    held = ", ".join(f"{name} {nbytes * count / 2**20:.0f} MiB" for name, count in copies.items())
    console.print(f"a rank holds {here:,} numbers of a model of {whole:,}: {held}; activations come on top", highlight=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _sharding_table(parameters: Parameters) -> Table:
    """One line for all parameters that are cut alike in all blocks, then one for the rest."""
    table = Table(title="parameters")
    for column in ("name", "tensors", "whole", "on each rank", "padding"):
        table.add_column(column, justify="right" if column == "tensors" else "left")
    alike: dict[str, list[str]] = {}
    for name in parameters.cuts:
        alike.setdefault(pattern_of(name), []).append(name)
    for pattern, names in alike.items():
        cut, part = parameters.cuts[names[0]], parameters.by_name[names[0]]
        padding = f"{cut.padded - cut.size} of {cut.padded} are zeros" if cut.padded > cut.size else ""
        table.add_row(pattern, str(len(names)), _product(parameters.whole_shape(names[0])), _product(part.shape), padding)
    rest = [parameter for name, parameter in parameters.by_name.items() if name not in parameters.cuts]
    table.add_row("all others", str(len(rest)), f"{_count(rest):,} numbers", "the same", "")
    return table


def _traffic_table(traffic: Sequence[Traffic]) -> Table:
    table = Table(title="one step sends, from each rank")
    for column in ("for", "collective", "calls", "MB"):
        table.add_column(column, justify="right" if column in ("calls", "MB") else "left")
    for line in traffic:
        table.add_row(line.purpose, line.kind, str(line.calls), f"{line.sent_bytes / 1e6:.1f}")
    if not traffic:
        table.add_row("nothing", "", "0", "0.0")
    return table


def _count(parameters: Sequence[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _product(sizes: Sequence[int]) -> str:
    return " x ".join(str(size) for size in sizes)
