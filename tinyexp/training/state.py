"""Everything that a training run changes as it goes."""

from dataclasses import dataclass, field

import torch
from timm.scheduler.scheduler import Scheduler

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.ema import ShardEma
from tinyexp.training.meters import Meter
from tinyexp.training.verdict import Verdict


@dataclass
class TrainState:
    """The model lies with the accelerator; this is what moves with it from step to step."""

    accelerator: Accelerator
    optimizer: torch.optim.Optimizer
    lr_scheduler: Scheduler
    ema: ShardEma | None = None
    epoch: int = 0  # the epoch that runs, or would run next
    epoch_step: int = 0  # optimizer steps of that epoch
    step: int = 0  # optimizer steps of the whole run
    meters: dict[str, Meter] = field(default_factory=dict)  # of that epoch, for this replica
    epoch_is_trained: bool = False  # all its steps are done
    train_stats: dict[str, float] | None = None  # averages over its steps, once they are to be evaluated before any more
    verdict: Verdict = field(default_factory=Verdict)  # of the last step; the same on every rank
    resumed_from: str = ""  # the checkpoint from which all of this was taken; empty where none was
    max_accuracy: float = -1.0  # percent; best top-1 of the model so far, below 0 before the first evaluation
    last_accuracy: float = 0.0  # percent; top-1 of the epoch before, which `plateau` goes by

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    @property
    def finished_epoch(self) -> int:
        """The last epoch whose training is over; -1 before the first. What the official checkpoint calls `epoch`."""
        return self.epoch if self.epoch_is_trained else self.epoch - 1

    def begin_next_epoch(self) -> None:
        """Leave an epoch that is trained and evaluated."""
        self.epoch, self.epoch_step, self.meters = self.epoch + 1, 0, {}
        self.epoch_is_trained, self.train_stats = False, None
