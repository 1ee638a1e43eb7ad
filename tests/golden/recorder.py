"""Watch the shipped experiment train, and note what the record notes: every step, every epoch, every evaluation."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from timm.data.mixup import Mixup
from timm.layers import DropPath
from torch import Tensor

from tests.golden.record import Checksum, total
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.ema import ShardEma
from tinyexp.data.batches import PaddedBatches
from tinyexp.examples import vit_evaluation, vit_tp_exp
from tinyexp.examples.vit_tp_exp import LAYOUT, VitTpExp
from tinyexp.process import preserve_random_state
from tinyexp.training.epoch import SizedBatches, evaluate, train_one_epoch
from tinyexp.training.state import TrainState

FAST_DECAY = 0.9  # a second average, followed beside the recipe's own, in which single steps show


@dataclass
class Evaluation:
    """What the experiment's evaluation returned, and what this rank's images contributed."""

    stats: dict[str, float]
    losses: list[float]  # of each image that this rank scored, in its order


@dataclass
class Epoch:
    """What one rank did in one epoch."""

    epoch: int
    lr: list[float] = field(default_factory=list)  # of both groups in every step
    loss: list[float] = field(default_factory=list)
    grad_norm_at_step: list[float] = field(default_factory=list)  # of the gradient that the optimizer sees
    grad_norm_pre_clip: list[float] = field(default_factory=list)
    train_stats: dict[str, float] = field(default_factory=dict)
    indices: list[int] = field(default_factory=list)  # of the images, in the order taken
    mix: list[list[Any]] = field(default_factory=list)  # CutMix or not, lam drawn, lam used, the box
    drop_path: list[str] = field(default_factory=list)  # a digit an image, 1 = kept; in the order of the layers and steps
    random_state: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # what each generator would draw next
    totals: dict[str, Checksum] = field(default_factory=dict)  # of the weights and of their averages
    evaluations: dict[str, Evaluation] = field(default_factory=dict)


class Recorder:
    """Stands at the two calls by which the experiment trains and evaluates, and passes them on."""

    def __init__(self, experiment: VitTpExp) -> None:
        self.experiment = experiment
        self.epochs: list[Epoch] = []
        self.averages: dict[str, ShardEma] = {}
        self.state: TrainState | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with (
            mock.patch.object(vit_tp_exp, "train_one_epoch", self.train_one_epoch),
            mock.patch.object(vit_evaluation, "evaluate", self.evaluate),
            mock.patch.object(vit_tp_exp, "draw_curves"),  # takes seconds and is no part of the record
        ):
            yield

    @property
    def now(self) -> Epoch:
        return self.epochs[-1]

    def train_one_epoch(
        self, state: TrainState, loader: Any, *, criterion: Any, mixer: Any = None, **options: Any
    ) -> dict[str, float]:
        if not self.epochs:
            self.state = state
            self._follow(state)
        self.epochs.append(Epoch(state.epoch))
        loader.dataset.images.taken.clear()
        self.now.random_state["before_train"] = next_draws()
        with drawn_from_beta() as drawn, mock.patch.object(state.accelerator, "update", self._update(state.accelerator.update)):
            self.now.train_stats = train_one_epoch(
                state, loader, criterion=self._criterion(criterion), mixer=mixer and self._mixer(mixer, drawn), **options
            )
        self.now.random_state["after_train"] = next_draws()
        self.now.indices = list(loader.dataset.images.taken)
        self.now.totals["model"] = total(LAYOUT.to_official(state.accelerator.whole_weights()).values())
        for name, average in self.averages.items():
            whole = LAYOUT.to_official(state.accelerator.whole_like_weights(average.average))
            self.now.totals[name] = total(whole.values())
        with preserve_random_state():
            self._evaluate_more(state.accelerator)
        return self.now.train_stats

    def evaluate(self, accelerator: Accelerator, batches: SizedBatches, **options: Any) -> dict[str, float]:
        """The experiment scores the weights first, then their average."""
        if "eval" in self.now.evaluations:
            scored = self.now.evaluations[f"eval_ema{self.experiment.ema_cfg.model_ema_decay}"] = score(
                accelerator, batches, **options
            )
        else:
            scored = self.now.evaluations["eval"] = score(accelerator, batches, **options)
            self.now.random_state["after_eval"] = next_draws()
        return scored.stats

    def _follow(self, state: TrainState) -> None:
        """Hooks for the whole run."""
        assert state.ema is not None
        self.averages[f"ema{state.ema.decay}"] = state.ema
        if state.ema.decay != FAST_DECAY:
            fast = self.averages[f"ema{FAST_DECAY}"] = ShardEma(state.accelerator.parameters, FAST_DECAY)
            state.optimizer.register_step_post_hook(lambda *_: fast.update())

        def note_step(*_: Any) -> None:
            self.now.lr += [group["lr"] for group in state.optimizer.param_groups]
            self.now.grad_norm_at_step.append(state.accelerator.gradient_norm().item())

        def note_kept(layer: torch.nn.Module, _: Any, output: Tensor) -> None:
            if layer.training:
                self.now.drop_path.append("".join(str(int(kept)) for kept in (output != 0).flatten(1).any(1)))

        state.optimizer.register_step_pre_hook(note_step)
        for layer in state.accelerator.model.modules():
            if isinstance(layer, DropPath):
                layer.register_forward_hook(note_kept)

    def _evaluate_more(self, accelerator: Accelerator) -> None:
        """What the experiment itself does not score in this run: the official padded evaluation, and the second average."""
        cfg, replica = self.experiment.dataloader_cfg, accelerator.replica
        classes = self.experiment.module_cfg.num_classes
        padded, exact = (
            PaddedBatches(replace(cfg, dist_eval=padded).build_val(replica, num_classes=classes, device_type="cpu"))
            for padded in (True, False)
        )
        self.now.evaluations["eval_dist_eval"] = score(accelerator, padded)
        for name, average in list(self.averages.items())[1:]:
            with average.in_place_of_weights():
                self.now.evaluations[f"eval_{name}"] = score(accelerator, exact)

    def _update(self, update: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def noted(*arguments: Any, **options: Any) -> Tensor | None:
            norm = update(*arguments, **options)
            if norm is not None:
                self.now.grad_norm_pre_clip.append(norm.item())
            return norm

        return noted

    def _criterion(self, criterion: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def noted(logits: Tensor, targets: Tensor) -> Tensor:
            loss = criterion(logits, targets)
            self.now.loss.append(loss.item())
            return loss

        return noted

    def _mixer(self, mixer: Mixup, drawn: list[tuple[float, float]]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def noted(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            before = images.clone()
            images, soft_targets = mixer(images, targets)
            alpha, lam = drawn[-1]
            box = changed_box(before, images) if alpha == mixer.cutmix_alpha else None
            self.now.mix.append([int(box is not None), lam, lam if box is None else share_outside(box, images), box])
            return images, soft_targets

        return noted


def score(accelerator: Accelerator, batches: SizedBatches, **options: Any) -> Evaluation:
    """Evaluate, and note the loss of each image beside the averages that come back."""
    logits: list[Tensor] = []
    targets: list[Tensor] = []

    class Noted:
        def __len__(self) -> int:
            return len(batches)

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for images, classes in batches:
                targets.append(classes)
                yield images, classes

    def note(_module: torch.nn.Module, _inputs: Any, output: Tensor) -> None:
        logits.append(output)

    handle = accelerator.model.register_forward_hook(note)
    stats = evaluate(accelerator, Noted(), **options)
    handle.remove()
    losses = [
        F.cross_entropy(rows[: len(classes)], classes, reduction="none") for rows, classes in zip(logits, targets, strict=True)
    ]
    return Evaluation(stats, torch.cat(losses).tolist())


def next_draws() -> dict[str, list[Any]]:
    """What the three generators of this process would draw next."""
    with preserve_random_state():
        return {
            "torch_next_int64": [int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2)],
            "numpy_next_double": np.random.random_sample(2).tolist(),
            "python_next_double": [random.random()],
        }


@contextlib.contextmanager
def drawn_from_beta() -> Iterator[list[tuple[float, float]]]:
    """Every draw of numpy's global beta distribution within the block: alpha and the number."""
    drawn: list[tuple[float, float]] = []
    beta = np.random.beta

    def noted(a: float, b: float) -> float:
        drawn.append((a, beta(a, b)))
        return drawn[-1][1]

    with mock.patch.object(np.random, "beta", noted):
        yield drawn


def changed_box(before: Tensor, after: Tensor) -> list[int]:
    """The rows and columns in which any image of the batch changed: first and one past the last of each."""
    changed = (before != after).any(0).any(0)
    rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
    assert changed.sum() == (rows.max() + 1 - rows.min()) * (columns.max() + 1 - columns.min()), "not one rectangle"
    return [int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1]


def share_outside(box: list[int], images: Tensor) -> float:
    height, width = images.shape[-2:]
    return 1.0 - (box[1] - box[0]) * (box[3] - box[2]) / (height * width)
