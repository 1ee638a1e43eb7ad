"""One epoch of training, and one pass over the validation set."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.divergence import check_agreement
from tinyexp.errors import DataError, NonFiniteLoss, PeerFailed
from tinyexp.process import preserve_random_state
from tinyexp.signals import StopRequest
from tinyexp.training.deadline import within
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.metrics import Metrics
from tinyexp.training.state import TrainState
from tinyexp.training.step_record import Observer, StepRecorder
from tinyexp.training.verdict import agree


class SizedBatches(Protocol):
    """Batches whose number is known before the first one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class StopAgreed(Exception):
    """All ranks have left the loop after the same step, because a signal reached one of them."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass(frozen=True)
class Guards:
    """What a loop looks out for beside its work, and what it does every so often."""

    stop: StopRequest = field(default_factory=StopRequest)
    check_every: int = 0  # steps between two comparisons of what ranks hold alike; 0: never
    save_every: int = 0  # steps between two calls of `save` within an epoch; 0: never
    save: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None  # called after each such comparison
    observe: Observer | None = None  # gets the record of every step, on the main rank


def train_one_epoch(
    state: TrainState,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    num_batches: int,
    criterion: Criterion,
    mixer: Mixer | None = None,
    clip_grad: float | None = None,
    guards: Guards | None = None,
) -> dict[str, float]:
    """Take optimizer steps up to step `num_batches` of the epoch. Every rank must call it with its replica's images.

    `batches` are images (B, 3, H, W) and classes (B,), those after the `state.epoch_step` that are done already.
    Returns: mean lr and loss over steps and replicas, those done before included.
    Raises: NonFiniteLoss before the step that would have used it, StopAgreed after a step, Diverged.
    """
    accelerator, guards = state.accelerator, guards or Guards()
    accelerator.training_model.train()
    accelerator.barrier()  # or a rank's clock would run while another, for whose rows it waits, still tells of the epoch before
    metrics, recorder = Metrics(accelerator, state.meters), StepRecorder(accelerator, guards.observe)
    header, done = f"Epoch: [{state.epoch}]", state.epoch_step
    # a new iterator draws one int64, which an epoch that is continued has drawn when it began
    with preserve_random_state() if done else contextlib.nullcontext():
        iterator = iter(batches)
    steps = islice(within(iterator, accelerator.timeout_s, accelerator.world.size), num_batches - done)
    for images, targets in metrics.progress(steps, num_batches, header, done=done):
        images = images.to(accelerator.device, accelerator.dtype, non_blocking=True)
        targets = targets.to(accelerator.device, non_blocking=True)
        if mixer is not None:
            images, targets = mixer(images, targets)
        seen = {"signal_number": guards.stop.number, "data_s": metrics.data_s}
        with recorder.step(state, len(images)):
            loss_value = train_step(state, images, targets, criterion=criterion, clip_grad=clip_grad, **seen)
        metrics.add(loss=loss_value)
        metrics.add(lr=state.lr)
        if guards.check_every and state.step % guards.check_every == 0:
            check_agreement(accelerator, step=state.step, batch=(images, targets))
            guards.check()
        if state.verdict.signal_number:
            raise StopAgreed(state.verdict.signal_number)
        if guards.save_every and state.step % guards.save_every == 0 and state.epoch_step < num_batches:
            guards.save()
    averages = metrics.averages()
    if accelerator.is_main:
        print(f"Averaged stats: lr: {averages['lr']:.6f}  loss: {averages['loss']:.4f}", flush=True)
    return {"lr": averages["lr"], "loss": averages["loss"]}


def train_step(
    state: TrainState,
    images: Tensor,
    targets: Tensor,
    *,
    criterion: Criterion,
    clip_grad: float | None = None,
    signal_number: int = 0,
    data_s: float = 0.0,
) -> float:
    """One optimizer step on this replica's (mixed) images. Every rank must call it, with the signal that it has received or 0,
    and the seconds that it waited for the images.

    Returns: the loss before the step, of this replica. `state.verdict` then holds what all ranks saw of it.
    Raises: NonFiniteLoss on the rank with the NaN and PeerFailed on the others, all before the update.
    """
    accelerator = state.accelerator
    with accelerator.autocast():
        loss = criterion(accelerator.training_model(images), targets)
    loss_value = loss.item()
    accelerator.backward(loss)
    broken = accelerator.nonfinite_gradients()
    state.verdict = agree(accelerator, loss=loss_value, bad_gradient=bool(broken), signal_number=signal_number, data_s=data_s)
    if state.verdict.bad_rank is not None:
        raise _refusal(state, loss_value, broken)
    accelerator.update(state.optimizer, clip_grad=clip_grad)
    if state.ema is not None:
        state.ema.update()
    state.step += 1
    state.epoch_step += 1
    return loss_value


def _refusal(state: TrainState, loss: float, broken: Sequence[str]) -> NonFiniteLoss | PeerFailed:
    """Why this rank does not take the step: for what it has found itself, or because another rank found something first."""
    rank, bad_rank = state.accelerator.world.rank, state.verdict.bad_rank
    where = f"at step {state.step} (epoch {state.epoch}), lr {state.lr:g}"
    if rank != bad_rank:
        return PeerFailed(f"rank {bad_rank} found a value that is not finite {where}")
    what = f"the gradient of {broken[0]} is not finite" if state.verdict.rank_of_bad_loss is None else f"the loss is {loss}"
    return NonFiniteLoss(
        f"{what} {where}; no weight was changed by it and no checkpoint holds it; lower optimizer_cfg.lr "
        "or set optimizer_cfg.clip_grad, and continue with resume_from=auto"
    )


@torch.no_grad()
def evaluate(
    accelerator: Accelerator,
    batches: SizedBatches,
    *,
    header: str = "Test:",
    stop: StopRequest | None = None,
    note: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, float]:
    """Score a set. Every rank must call it, with as many batches as the others and, within a tp group, of equal sizes.

    A batch is images (B, 3, H, W) and classes (V,) of its first V <= B images; the rest is padding and is not counted.
    `note` gets the logits (V, classes) and classes of each batch that has images.
    Returns: mean cross-entropy `loss` and top-1 and top-5 accuracy in percent over all images of all replicas, and their number.
    Raises: StopAgreed after a batch.
    """
    model = accelerator.model
    model.eval()
    metrics = Metrics(accelerator)
    sums = torch.zeros(4, dtype=torch.float64)  # loss, correct among 1, correct among 5, images
    in_time = within(batches, accelerator.timeout_s, accelerator.world.size)
    for images, targets in metrics.progress(in_time, len(batches), header):
        with accelerator.autocast():
            logits = model(images.to(accelerator.device, accelerator.dtype, non_blocking=True))[: len(targets)]
        if stop is not None and (signal_number := accelerator.largest([stop.number])[0]):
            raise StopAgreed(signal_number)
        if not len(targets):
            continue
        logits, targets = logits.float() if logits.dtype.itemsize < 4 else logits, targets.to(accelerator.device)
        if note is not None:
            note(logits, targets)
        scores = _sums(logits, targets)
        sums += scores
        loss, correct1, correct5, count = scores.tolist()
        metrics.add(weight=count, loss=loss / count, acc1=100 * correct1 / count, acc5=100 * correct5 / count)
    loss, correct1, correct5, count = accelerator.reduce(sums).tolist()
    if not count:
        raise DataError("none of the images of the validation set can be read")
    stats = {"loss": loss / count, "acc1": 100 * correct1 / count, "acc5": 100 * correct5 / count, "images": int(count)}
    if accelerator.is_main:
        print(f"* Acc@1 {stats['acc1']:.3f} Acc@5 {stats['acc5']:.3f} loss {stats['loss']:.3f}", flush=True)
    return stats


def _sums(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed loss, correct among the best 1 and the best 5 classes, and number of images, as float64 on the CPU."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best.eq(targets[:, None])
    loss = F.cross_entropy(logits, targets, reduction="sum")
    return torch.stack(
        [loss.double(), hits[:, 0].sum().double(), hits.sum().double(), loss.new_tensor(len(targets)).double()]
    ).cpu()
