"""Tensor parallelism beside data parallelism on the same ranks: which runs to measure, and the table of what came out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.bench.throughput import BenchResult
from tinyexp.observability.table import add_plain_row, plain_table
from tinyexp.parallel.mesh import MeshShape
from tinyexp.parallel.report import Traffic


def runs_to_compare(shape: MeshShape, cfg: AcceleratorCfg, batch: int, *, multiple_of: int) -> list[tuple[AcceleratorCfg, int]]:
    """The configured run, then data parallelism at equal batch a rank and, where that is another one, at equal global batch.

    Each with its batch a rank, which must be a multiple of `multiple_of`. With sharded activations both comparisons are one:
    every rank reads its own images.
    """
    runs = [(cfg, batch)]
    if cfg.accelerator != "tp" or shape.world == 1:
        return runs
    data_parallel = replace(cfg, accelerator="ddp", tp_size=0, overlap_chunks=1)
    equal_global_batch = batch * cfg.num_replicas(shape) / shape.world
    batches = [batch] if equal_global_batch % multiple_of else [batch, int(equal_global_batch)]
    return runs + [(data_parallel, each) for each in dict.fromkeys(batches)]


def show_comparison(results: Sequence[BenchResult]) -> None:
    """Print the line of each run, then one table, a column for each."""
    for result in results:
        print(result.line(), flush=True)
    first = results[0]
    title = f"one training step on {first.device}, {first.precision}, {first.threads} threads a rank, torch {first.torch}"
    runs = [result.run for result in results]
    table = plain_table(["", *runs], title=title, right=runs)
    table.columns[0].no_wrap = True
    for name, cell in ROWS.items():
        add_plain_row(table, name, *(cell(result) for result in results))
    rates = [result.training_step.images_per_s for result in results]
    add_plain_row(table, "images/s relative to the first", *(f"{rate / rates[0]:.2f}" for rate in rates))
    for kind in sorted({line.kind for result in results for line in result.traffic}):
        add_plain_row(table, f"sent a step, {kind}", *(_sent(result.traffic, kind) for result in results))
    Console().print(table)


ROWS: dict[str, Callable[[BenchResult], str]] = {
    "images a rank": lambda result: str(result.batch_per_rank),
    "global batch": lambda result: str(result.global_batch),
    "step, median": lambda result: f"{result.training_step.step_ms:.1f} ms",
    "step, 10 to 90 %": lambda result: f"{result.training_step.step_ms_p10:.1f} - {result.training_step.step_ms_p90:.1f} ms",
    "forward and backward only": lambda result: f"{result.forward_backward.step_ms:.1f} ms",
    "images/s": lambda result: f"{result.training_step.images_per_s:.1f}",
    "images/s, forward and backward": lambda result: f"{result.forward_backward.images_per_s:.1f}",
    "CUDA peak": lambda result: _mib(result.peak_memory_bytes),
    "held: parameters": lambda result: _mib(result.held_bytes.parameters),
    "held: gradients": lambda result: _mib(result.held_bytes.gradients),
    "held: optimizer": lambda result: _mib(result.held_bytes.optimizer),
    "held: average": lambda result: _mib(result.held_bytes.average),
    "held: activations": lambda result: _mib(result.held_bytes.activations),
    "activations an image of the mesh": lambda result: _mib(result.held_bytes.activations / result.global_batch),
}


def _sent(traffic: Sequence[Traffic], kind: str) -> str:
    found = [
        f"{line.calls} call{'s' * (line.calls != 1)}, {line.sent_bytes / 1e6:.1f} MB" for line in traffic if line.kind == kind
    ]
    return ", ".join(found) or "-"


def _mib(nbytes: float | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:.1f} MiB"
