import json
from pathlib import Path

import pytest
import torch

from tinyexp.training.schedule import LrSchedulerCfg

GOLDEN = json.loads((Path(__file__).parent.parent / "data/golden/lr_schedule.json").read_text())


@pytest.mark.parametrize("scaled_lr", GOLDEN["by_scaled_lr"])
def test_every_one_of_300_epochs_trains_at_the_official_rate(scaled_lr):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(scaled_lr))
    scheduler = LrSchedulerCfg().build(optimizer, epochs=300, seed=0)
    in_force = []
    for epoch in range(300):
        in_force.append(optimizer.param_groups[0]["lr"])
        scheduler.step(epoch, metric=0.0)
    assert in_force == GOLDEN["by_scaled_lr"][scaled_lr]["lr_in_force_per_epoch"]


@pytest.mark.filterwarnings("ignore:PlateauLRScheduler is deprecated:FutureWarning")  # one of the official choices all the same
@pytest.mark.parametrize("sched", ["cosine", "tanh", "step", "multistep", "plateau", "poly"])
def test_every_allowed_schedule_can_be_stepped(sched):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = LrSchedulerCfg(sched=sched).build(optimizer, epochs=20, seed=0)
    for epoch in range(20):
        scheduler.step(epoch, metric=50.0)
    assert optimizer.param_groups[0]["lr"] >= 0


def test_impossible_schedules_are_named():
    problems = "\n".join(LrSchedulerCfg(sched="cosin", warmup_epochs=-9, min_lr=-1).problems())
    for part in ("lr_scheduler_cfg.sched='cosin'", "lr_scheduler_cfg.warmup_epochs=-9", "lr_scheduler_cfg.min_lr=-1"):
        assert part in problems
