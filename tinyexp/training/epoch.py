"""One epoch of training, and one pass over the validation set."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.errors import NonFiniteLoss
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.metrics import Metrics
from tinyexp.training.state import TrainState


class SizedBatches(Protocol):
    """Batches whose number is known before the first one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


def train_one_epoch(
    state: TrainState,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    num_batches: int,
    criterion: Criterion,
    mixer: Mixer | None = None,
    clip_grad: float | None = None,
) -> dict[str, float]:
    """Take `num_batches` optimizer steps. Every rank must call it with its replica's images (B, 3, H, W) and classes (B,).

    Returns: mean lr and loss over steps and replicas.
    Raises: NonFiniteLoss before the step that would have used it.
    """
    accelerator = state.accelerator
    accelerator.training_model.train()
    metrics = Metrics(accelerator)
    header = f"Epoch: [{state.epoch}]"
    for images, targets in metrics.progress(islice(batches, num_batches), num_batches, header):
        images = images.to(accelerator.device, accelerator.dtype, non_blocking=True)
        targets = targets.to(accelerator.device, non_blocking=True)
        if mixer is not None:
            images, targets = mixer(images, targets)
        loss_value = train_step(state, images, targets, criterion=criterion, clip_grad=clip_grad)
        metrics.add(loss=loss_value)
        metrics.add(lr=state.lr)
    averages = metrics.averages()
    if accelerator.is_main:
        print(f"Averaged stats: lr: {averages['lr']:.6f}  loss: {averages['loss']:.4f}", flush=True)
    return {"lr": averages["lr"], "loss": averages["loss"]}


def train_step(
    state: TrainState, images: Tensor, targets: Tensor, *, criterion: Criterion, clip_grad: float | None = None
) -> float:
    """One optimizer step on this replica's (mixed) images. Every rank must call it. Returns: the loss before the step."""
    accelerator = state.accelerator
    with accelerator.autocast():
        loss = criterion(accelerator.training_model(images), targets)
    loss_value = loss.item()
    if not math.isfinite(loss_value):
        raise NonFiniteLoss(
            f"the loss is {loss_value} at step {state.step} (epoch {state.epoch}), lr {state.lr:g}; "
            "no weight was changed by it; lower optimizer_cfg.lr or set optimizer_cfg.clip_grad"
        )
    accelerator.step(loss, state.optimizer, clip_grad=clip_grad)
    if state.ema is not None:
        state.ema.update()
    state.step += 1
    return loss_value


@torch.no_grad()
def evaluate(accelerator: Accelerator, batches: SizedBatches, *, header: str = "Test:") -> dict[str, float]:
    """Score a set. Every rank must call it, with as many batches as the others and, within a tp group, of equal sizes.

    A batch is images (B, 3, H, W) and classes (V,) of its first V <= B images; the rest is padding and is not counted.
    Returns: mean cross-entropy `loss` and top-1 and top-5 accuracy in percent over all images of all replicas, and their number.
    """
    model = accelerator.model
    model.eval()
    metrics = Metrics(accelerator)
    sums = torch.zeros(4, dtype=torch.float64)  # loss, correct among 1, correct among 5, images
    for images, targets in metrics.progress(batches, len(batches), header):
        with accelerator.autocast():
            logits = model(images.to(accelerator.device, accelerator.dtype, non_blocking=True))[: len(targets)]
        if not len(targets):
            continue
        scores = _sums(logits.float() if logits.dtype.itemsize < 4 else logits, targets.to(accelerator.device))
        sums += scores
        loss, correct1, correct5, count = scores.tolist()
        metrics.add(weight=count, loss=loss / count, acc1=100 * correct1 / count, acc5=100 * correct5 / count)
    loss, correct1, correct5, count = accelerator.reduce(sums).tolist()
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
