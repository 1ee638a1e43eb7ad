import torch
from torch import nn

from tinyexp.training.loss import LossCfg


def test_mixing_gives_soft_targets_whose_rows_sum_to_one():
    mixer, criterion = LossCfg().build(num_classes=10)
    assert mixer is not None
    images, targets = mixer(torch.randn(4, 3, 8, 8), torch.tensor([1, 2, 3, 4]))
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    assert criterion(torch.zeros(4, 10), targets).isfinite()
    assert images.shape == (4, 3, 8, 8)


def test_without_mixing_smoothing_remains_and_without_smoothing_plain_cross_entropy():
    logits, classes = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])
    mixer, smoothed = LossCfg(mixup=0, cutmix=0).build(num_classes=10)
    assert mixer is None
    torch.testing.assert_close(smoothed(logits, classes), nn.CrossEntropyLoss(label_smoothing=0.1)(logits, classes))
    _, plain = LossCfg(mixup=0, cutmix=0, smoothing=0).build(num_classes=10)
    assert isinstance(plain, nn.CrossEntropyLoss)


def test_impossible_values_are_named():
    problems = "\n".join(LossCfg(mixup=-1, smoothing=2, mixup_mode="row").problems())
    for part in ("loss_cfg.mixup=-1", "loss_cfg.smoothing=2", "loss_cfg.mixup_mode='row'"):
        assert part in problems
