"""`mode=plan`: what a run would shard, send and hold, found before any process starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.observability.table import add_plain_row, plain_table
from tinyexp.parallel.apply import Parameters
from tinyexp.parallel.plan import PlanBuilder, pattern_of
from tinyexp.parallel.report import ALL_GATHER, Traffic, sent_bytes

OPTIMIZER_COPIES = 2  # AdamW's two moments
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Sharding:
    """How the parameters of one name, whatever the block, lie on the ranks."""

    name: str
    tensors: int
    whole: str  # shape of the whole
    on_each_rank: str
    padding: str  # what of it is filled up with zeros; empty: nothing


def sharding(parameters: Parameters) -> list[Sharding]:
    """One row for all parameters that are cut alike in all blocks, then one for the rest."""
    alike: dict[str, list[str]] = {}
    for name in parameters.cuts:
        alike.setdefault(pattern_of(name), []).append(name)
    rows = []
    for pattern, names in alike.items():
        cut, part = parameters.cuts[names[0]], parameters.by_name[names[0]]
        padding = f"{cut.padded - cut.size} of {cut.padded} are zeros" if cut.padded > cut.size else ""
        rows.append(Sharding(pattern, len(names), _product(parameters.whole_shape(names[0])), _product(part.shape), padding))
    rest = [parameter for name, parameter in parameters.by_name.items() if name not in parameters.cuts]
    return [*rows, Sharding("all others", len(rest), f"{_count(rest):,} numbers", "the same", "")]


def plan_page(
    cfg: AcceleratorCfg,
    model: nn.Module,
    *,
    build_plan: PlanBuilder,
    residual_stream: Callable[[nn.Module, int], tuple[int, int, int]],
    num_processes: int,
    device_type: str,
    batch: int,
    image_size: int,
    averaged: bool,
) -> str:
    """The page as text. The model is on the meta device, the processes are pretended; the code is that of the run."""
    with cfg.pretended(num_processes, device_type, build_plan) as accelerator:
        accelerator.prepare(model)
        traffic = accelerator.traffic(residual_stream(model, batch))
        page = _page(accelerator, traffic, label=cfg.label(accelerator.mesh.shape), averaged=averaged)
        return page + _reading(accelerator.readers.size, batch, batch * 3 * image_size**2 * FLOAT_BYTES)


def _reading(readers: int, batch: int, batch_bytes: int) -> str:
    """What a group sends of its images before a step; "" where each rank reads its own."""
    if not 1 < readers <= batch:
        return ""
    sent = sent_bytes(ALL_GATHER, batch_bytes, readers) / 1e6
    return f"before the step, the {readers} ranks of a group read {batch} images together; each sends {sent:.1f} MB of them\n"


def _page(accelerator: Accelerator, traffic: Sequence[Traffic], *, label: str, averaged: bool) -> str:
    console = Console(file=StringIO(), width=120)
    parameters = accelerator.parameters
    console.print(Text(f"{label}, {accelerator.world.size} processes, {accelerator.precision}"))
    console.print(_sharding_table(parameters))
    console.print(_traffic_table(traffic))
    here, whole = sum(each.numel() for each in parameters.by_name.values()), parameters.num_whole()
    copies = {"parameters": 1, "gradients": 1, "optimizer": OPTIMIZER_COPIES, "average": int(averaged)}
    nbytes = here * accelerator.dtype.itemsize
    held = ", ".join(f"{name} {nbytes * count / 2**20:.0f} MiB" for name, count in copies.items())
    console.print(Text(f"a rank holds {here:,} numbers of a model of {whole:,}: {held}; activations come on top"))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _sharding_table(parameters: Parameters) -> Table:
    """One line for all parameters that are cut alike in all blocks, then one for the rest."""
    table = plain_table(("name", "tensors", "whole", "on each rank", "padding"), title="parameters", right=("tensors",))
    for row in sharding(parameters):
        add_plain_row(table, row.name, str(row.tensors), row.whole, row.on_each_rank, row.padding)
    return table


def _traffic_table(traffic: Sequence[Traffic]) -> Table:
    headers = ("for", "collective", "calls", "MB")
    table = plain_table(headers, title="one step sends, from each rank", right=("calls", "MB"))
    for line in traffic:
        add_plain_row(table, line.purpose, line.kind, str(line.calls), f"{line.sent_bytes / 1e6:.1f}")
    if not traffic:
        add_plain_row(table, "nothing", "", "0", "0.0")
    return table


def _count(parameters: Sequence[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _product(sizes: Sequence[int]) -> str:
    return " x ".join(str(size) for size in sizes)
