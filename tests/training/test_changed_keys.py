import argparse

import pytest

from tinyexp.errors import CheckpointError
from tinyexp.training.changed_keys import changed_keys

THEN = {
    "exp_name": "run",
    "seed": 0,
    "epochs": 24,
    "optimizer_cfg": {"lr": 1e-3, "weight_decay": 0.05, "clip_grad": None},
    "lr_scheduler_cfg": {"warmup_epochs": 5},
    "dataloader_cfg": {"num_workers": 10, "reprob": 0.25},
}
OFFICIAL = argparse.Namespace(lr=0.002, weight_decay=0.05, warmup_epochs=5, epochs=24, seed=0, num_workers=10, reprob=0.25)


def now(**changes):
    return THEN | changes


@pytest.mark.parametrize("saved", [THEN, OFFICIAL])
def test_the_same_command_is_no_news_wherever_it_runs(saved):
    elsewhere = now(exp_name="other", dataloader_cfg={"num_workers": 2, "reprob": 0.25})
    assert changed_keys(saved, elsewhere, source="last.ckpt") == []


@pytest.mark.parametrize("saved", [THEN, OFFICIAL])
def test_a_key_whose_value_the_checkpoint_holds_is_refused_with_both_values(saved):
    changed = now(optimizer_cfg=THEN["optimizer_cfg"] | {"weight_decay": 9.0}, lr_scheduler_cfg={"warmup_epochs": 0})
    with pytest.raises(CheckpointError) as caught:
        changed_keys(saved, changed, source="last.ckpt")
    assert "optimizer_cfg.weight_decay=9.0 (there 0.05), lr_scheduler_cfg.warmup_epochs=0 (there 5)" in str(caught.value)
    assert str(caught.value).endswith("or start a new run, under another exp_name, with module_cfg.pretrained_from=last.ckpt")


def test_the_rate_of_an_official_file_is_one_of_its_batch_and_not_compared():
    with pytest.raises(CheckpointError, match=r"optimizer_cfg.lr=0.002 \(there 0.001\)"):
        changed_keys(THEN, now(optimizer_cfg=THEN["optimizer_cfg"] | {"lr": 0.002}), source="last.ckpt")
    assert changed_keys(OFFICIAL, now(optimizer_cfg=THEN["optimizer_cfg"]), source="last.ckpt") == []


def test_a_key_that_changes_what_is_learnt_is_said():
    changed = now(seed=3, epochs=48, optimizer_cfg=THEN["optimizer_cfg"] | {"clip_grad": 1.0})
    assert changed_keys(THEN, changed, source="last.ckpt") == [
        "seed 0 then, 3 now",
        "optimizer_cfg.clip_grad None then, 1.0 now",
        "epochs 24 then, 48 now: the learning rates stay those of 24 epochs",
    ]
