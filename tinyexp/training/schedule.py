"""The learning rate of each epoch, by timm's scheduler with DeiT's arguments."""

import argparse
import dataclasses
from dataclasses import dataclass

import torch
from timm.scheduler import create_scheduler
from timm.scheduler.scheduler import Scheduler

from tinyexp.limits import MOST, Range, range_problems

RANGES = {
    "warmup_epochs": Range(0, MOST, "0 is off"),
    "warmup_lr": Range(0, 1000.0),
    "min_lr": Range(0, 1000.0),
    "cooldown_epochs": Range(0, MOST),
    "decay_epochs": Range(1, MOST),
    "decay_rate": Range(0, 1, "1 never decays"),
    "patience_epochs": Range(0, MOST),
    "lr_noise_pct": Range(0, 1),
    "lr_noise_std": Range(0, 1000.0),
}
SCHEDULES = ("cosine", "tanh", "step", "multistep", "plateau", "poly")


@dataclass
class LrSchedulerCfg:
    """Cosine with warm-up. The schedule is stepped with the epoch just finished, so epochs 0 and 1 both start the warm-up."""

    sched: str = "cosine"  # cosine, tanh, step, multistep, plateau or poly; DeiT main.py --sched
    warmup_epochs: int = 5  # epochs from warmup_lr to lr; DeiT main.py --warmup-epochs
    warmup_lr: float = 1e-6  # of the first epoch, not scaled by the batch; DeiT main.py --warmup-lr
    min_lr: float = 1e-5  # of the last epochs, not scaled by the batch; DeiT main.py --min-lr
    cooldown_epochs: int = 10  # epochs at min_lr that timm appends; DeiT main.py --cooldown-epochs never runs them
    decay_epochs: int = 30  # epochs between two drops of `step`; DeiT main.py --decay-epochs
    decay_rate: float = 0.1  # factor of a drop; DeiT main.py --decay-rate
    patience_epochs: int = 10  # epochs `plateau` waits; DeiT main.py --patience-epochs
    lr_noise_pct: float = 0.67  # bound of the noise, as a share of lr, which DeiT leaves off; DeiT main.py --lr-noise-pct
    lr_noise_std: float = 1.0  # standard deviation of the noise, which DeiT leaves off; DeiT main.py --lr-noise-std

    def problems(self) -> list[str]:
        found = []
        if self.sched not in SCHEDULES:
            found.append(f"lr_scheduler_cfg.sched={self.sched!r}: allowed are {', '.join(SCHEDULES)}")
        return found + list(range_problems("lr_scheduler_cfg.", self, RANGES))

    def build(self, optimizer: torch.optim.Optimizer, *, epochs: int, seed: int) -> Scheduler:
        """The scheduler; building it sets the optimizer to the warm-up start."""
        arguments = argparse.Namespace(**dataclasses.asdict(self), epochs=epochs, seed=seed, lr_noise=None)
        scheduler, _ = create_scheduler(arguments, optimizer)
        assert scheduler is not None, "only for an unknown sched, which `problems` refuses"
        return scheduler
