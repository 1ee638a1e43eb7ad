"""Equality with one process as a measurement: the configured run on this mesh, and the same steps without parallelism."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.errors import NotEqual
from tinyexp.limits import Range, range_problems
from tinyexp.observability.table import add_plain_row, plain_table
from tinyexp.parallel.report import Traffic, TrafficCounter
from tinyexp.process import Axis, RandomStreams
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.state import TrainState

Batch = tuple[Tensor, Tensor]  # images (B, 3, H, W) and classes (B,)


RANGES = {
    "steps": Range(1, 1000),
    "images_per_replica": Range(1, 64),
    "lr": Range(0, 1.0),
    "clip_grad": Range(1e-9, 1e9, "0 or null is off", special=0),
}


@dataclass
class VerifyCfg:
    """How much `mode=verify` compares."""

    steps: int = 3  # optimizer steps on the mesh and on one process
    images_per_replica: int = 2  # of each step; mixup needs an even number
    lr: float = 1e-5  # of every step: frozen weights show, and rounding, which AdamW scales up to the rate, stays in bounds
    clip_grad: float | None = 1.0  # largest norm of the gradient in these steps; null: off

    def problems(self) -> list[str]:
        return list(range_problems("verify_cfg.", self, RANGES))


@dataclass(frozen=True)
class Bounds:
    """Largest absolute differences that the arithmetic explains."""

    loss: float
    weight: float
    norm: float  # relative


# float32: a loss or weight near 1 is exact to 6e-8, and a step sums some thousand of them in another order.
BOUNDS = {"fp64": Bounds(loss=1e-9, weight=1e-9, norm=1e-9), "fp32": Bounds(loss=1e-5, weight=1e-5, norm=1e-5)}


@dataclass
class Steps:
    """What the steps of one side left behind, whole tensors by name."""

    images: list[float] = field(default_factory=list)  # of this rank's replica, summed after mixing
    losses: list[float] = field(default_factory=list)  # of this rank's replica
    norms: list[float] = field(default_factory=list)  # of the whole gradient
    lrs: list[float] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    averages: dict[str, Tensor] = field(default_factory=dict)
    planned: list[Traffic] = field(default_factory=list)  # of one forward, backward and reduction
    counted: list[Traffic] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One compared quantity: its worst difference over all steps and ranks, and where that was."""

    precision: str
    quantity: str
    difference: float
    where: str
    bound: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.bound  # a NaN does not


@dataclass(frozen=True)
class Subject:
    """The run to verify."""

    build_state: Callable[[Accelerator], TrainState]  # seeds the replica's random stream and draws the initial weights
    batches: Callable[[Axis], Iterator[Batch]]  # of one replica, in its order
    seed: int  # replica r draws from seed + r
    mixer: Mixer | None
    criterion: Criterion
    residual_stream: Callable[[nn.Module, int], tuple[int, int, int]]  # model, images -> (images, tokens, dim)
    is_noise: Callable[[str], bool]  # a weight whose gradient is zero in exact arithmetic, so that float32 leaves only rounding


def compare(accelerator: Accelerator, subject: Subject, cfg: VerifyCfg) -> list[Row]:
    """The same steps on the mesh and on one process. Every rank must call it; all get the same rows."""
    mesh = _steps_on_mesh(accelerator, subject, cfg)
    alone = _steps_of_one_process(accelerator, subject, cfg)
    bounds, precision = BOUNDS[accelerator.precision], accelerator.precision
    compared = [name for name in mesh.weights if precision == "fp64" or not subject.is_noise(name)]
    moved = {name: _gap(mesh.weights[name], mesh.start[name]) for name in mesh.weights if not subject.is_noise(name)}
    frozen = [name for name, distance in moved.items() if distance == 0.0]
    rows = [
        Row(precision, "images of a step", *_worst_step(mesh.images, alone.images), 0.0),
        Row(precision, "loss of a step", *_worst_step(mesh.losses, alone.losses), bounds.loss),
        Row(precision, "gradient norm, relative", *_worst_step(mesh.norms, alone.norms, relative=True), bounds.norm),
        Row(precision, "learning rate", *_worst_step(mesh.lrs, alone.lrs), 0.0),
        Row(precision, "weight after the steps", *_worst_tensor(mesh.weights, alone.weights, compared), bounds.weight),
        Row(precision, "averaged weight", *_worst_tensor(mesh.averages, alone.averages, compared), bounds.weight),
        # Weights that no step moves would agree with everything.
        Row(precision, "tensors that never moved", float(len(frozen)), frozen[0] if frozen else "", 0.0),
        Row(
            precision,
            "collectives too many or too few",
            float(abs(_calls(mesh.counted) - _calls(mesh.planned))),
            f"{_calls(mesh.counted)} counted, {_calls(mesh.planned)} planned",
            0.0,
        ),
        Row(
            precision,
            "bytes sent too many or too few",
            float(abs(_sent(mesh.counted) - _sent(mesh.planned))),
            f"{_sent(mesh.counted):,} counted, {_sent(mesh.planned):,} planned",
            0.0,
        ),
    ]
    return _worst_over_ranks(rows, accelerator)


def show_rows(rows: Sequence[Row]) -> None:
    """Print the comparison as a table. Raises: NotEqual that names what is out of bounds."""
    headers = ("precision", "quantity", "difference", "bound", "where", "")
    table = plain_table(headers, title="mesh against one process: largest differences", right=("difference", "bound"))
    for row in rows:
        verdict = "equal" if row.holds else "DIFFERENT"
        add_plain_row(table, row.precision, row.quantity, f"{row.difference:.1e}", f"{row.bound:.0e}", row.where, verdict)
    Console().print(table)
    broken = [f"{row.quantity} ({row.precision}): {row.difference:.1e} at {row.where}" for row in rows if not row.holds]
    if broken:
        raise NotEqual("this mesh does not train as one process does:\n  " + "\n  ".join(broken))


def _steps_on_mesh(accelerator: Accelerator, subject: Subject, cfg: VerifyCfg) -> Steps:
    state, steps = subject.build_state(accelerator), Steps()
    steps.start = accelerator.whole_weights()
    batches = subject.batches(accelerator.replica)
    for _ in range(cfg.steps):
        loss, images = _loss(accelerator, batches, subject)
        steps.losses.append(loss.item())
        steps.images.append(images.double().sum().item())
        accelerator.backward(loss)
        _update(state, steps, cfg)
    _keep_results(state, steps)
    if cfg.steps == 1:  # DistributedDataParallel settles its buckets in the second backward
        _count(accelerator, batches, subject, steps)
    _count(accelerator, batches, subject, steps)
    return steps


def _count(accelerator: Accelerator, batches: Iterator[Batch], subject: Subject, steps: Steps) -> None:
    """Note what a forward, backward and reduction send, and what the plan says of it."""
    with TrafficCounter() as counter:
        loss, images = _loss(accelerator, batches, subject)
        accelerator.backward(loss)
    accelerator.parameters.clear_gradients()
    steps.planned = accelerator.traffic(subject.residual_stream(accelerator.model, len(images)))
    steps.counted = counter.traffic


def _steps_of_one_process(accelerator: Accelerator, subject: Subject, cfg: VerifyCfg) -> Steps:
    """The replicas one after the other, each with its own images and random stream; their gradients add up to the mean."""
    size, mine, steps = accelerator.replica.size, accelerator.replica.rank, Steps()
    streams = RandomStreams([subject.seed + rank for rank in range(size)])
    states, batches = [], []
    for rank in range(size):
        with streams.stream(rank):  # building a model draws, whether or not its weights are used
            replica = Axis(rank, size)
            states.append(
                subject.build_state(CPUAccelerator(device=accelerator.device, precision=accelerator.precision, replica=replica))
            )
            batches.append(subject.batches(replica))
    state = states[0]
    for _ in range(cfg.steps):
        for rank in range(size):
            with streams.stream(rank):
                loss, images = _loss(state.accelerator, batches[rank], subject)
            if rank == mine:
                steps.losses.append(loss.item())
                steps.images.append(images.double().sum().item())
            state.accelerator.backward(loss / size)
        _update(state, steps, cfg)
    _keep_results(state, steps)
    return steps


def _batch(accelerator: Accelerator, batches: Iterator[Batch], subject: Subject) -> Batch:
    images, targets = next(batches)
    images, targets = images.to(accelerator.device, accelerator.dtype), targets.to(accelerator.device)
    return (images, targets) if subject.mixer is None else subject.mixer(images, targets)


def _loss(accelerator: Accelerator, batches: Iterator[Batch], subject: Subject) -> tuple[Tensor, Tensor]:
    accelerator.training_model.train()
    images, targets = _batch(accelerator, batches, subject)
    return subject.criterion(accelerator.training_model(images), targets), images


def _update(state: TrainState, steps: Steps, cfg: VerifyCfg) -> None:
    for group in state.optimizer.param_groups:
        group["lr"] = cfg.lr
    # An infinite bound clips nothing and reports the norm all the same.
    norm = state.accelerator.update(state.optimizer, clip_grad=cfg.clip_grad or math.inf)
    assert norm is not None
    if state.ema is not None:
        state.ema.update()
    steps.norms.append(norm.item())
    steps.lrs.append(state.lr)


def _keep_results(state: TrainState, steps: Steps) -> None:
    steps.weights = state.accelerator.whole_weights()
    if state.ema is not None:
        steps.averages = state.accelerator.whole_like_weights(state.ema.average)


def _calls(traffic: Sequence[Traffic]) -> int:
    return sum(line.calls for line in traffic)


def _sent(traffic: Sequence[Traffic]) -> int:
    return sum(line.sent_bytes for line in traffic)


def _gap(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


def _worst_step(found: Sequence[float], expected: Sequence[float], *, relative: bool = False) -> tuple[float, str]:
    gaps = [abs(one - other) / (abs(other) if relative else 1.0) for one, other in zip(found, expected, strict=True)]
    worst = max(range(len(gaps)), key=lambda step: (math.isnan(gaps[step]), gaps[step]))
    return gaps[worst], f"step {worst}"


def _worst_tensor(found: dict[str, Tensor], expected: dict[str, Tensor], names: Sequence[str]) -> tuple[float, str]:
    gaps = {name: _gap(found[name], expected[name]) for name in names if name in found}
    if not gaps:
        return 0.0, "none"
    worst = max(gaps, key=lambda name: (math.isnan(gaps[name]), gaps[name]))
    return gaps[worst], worst


def _worst_over_ranks(rows: list[Row], accelerator: Accelerator) -> list[Row]:
    """Each row as the rank with the largest difference has it."""
    if accelerator.world.size == 1:
        return rows
    gathered: list[list[Row]] = [[] for _ in range(accelerator.world.size)]
    dist.all_gather_object(gathered, rows)
    return [max(column, key=lambda row: (math.isnan(row.difference), row.difference)) for column in zip(*gathered, strict=True)]
