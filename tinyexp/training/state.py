"""Everything that a training run changes as it goes."""

from dataclasses import dataclass

import torch
from timm.scheduler.scheduler import Scheduler

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.ema import ShardEma


@dataclass
class TrainState:
    """The model lies with the accelerator; this is what moves with it from step to step."""

    accelerator: Accelerator
    optimizer: torch.optim.Optimizer
    lr_scheduler: Scheduler
    ema: ShardEma | None = None
    epoch: int = 0  # the epoch that runs, or would run next
    step: int = 0  # optimizer steps of the whole run
    max_accuracy: float = -1.0  # percent; best top-1 of the model so far, below 0 before the first evaluation

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]
