import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers.equality import build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.data.batches import ImageLoader, PaddedBatches
from tinyexp.data.fake import FakeImages
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.samplers import ExactSampler
from tinyexp.data.transforms import build_eval_transform
from tinyexp.errors import NonFiniteLoss
from tinyexp.training.epoch import evaluate, train_one_epoch
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.state import TrainState

NAME = "deit_digits_patch8_32"


def scored(accelerator: Accelerator, num_images: int, batch: int) -> dict[str, float]:
    accelerator.prepare(build_noisy(NAME))
    dataset = FakeImages(num_images, 32, 10, build_eval_transform(DataLoaderCfg(input_size=32)))
    loader = ImageLoader(dataset, input_size=32, rows=batch, order=ExactSampler(num_images, accelerator.replica))
    return evaluate(accelerator, PaddedBatches(loader))


def scored_on_mesh(settings: dict[str, object], num_images: int, batch: int) -> dict[str, float]:
    return scored(build_accelerator(**settings), num_images, batch)


@pytest.mark.parametrize(("num_images", "batch"), [(11, 1), (11, 3), (11, 4), (11, 16), (1, 16)])
@pytest.mark.parametrize(
    "settings",
    [{"activations": "sharded"}, {"activations": "replicated"}, {"accelerator": "ddp"}],
    ids=["tp_sharded", "tp_replicated", "ddp"],
)
def test_two_ranks_score_each_image_once_as_one_process_does(settings, num_images, batch):  # case A16
    expected = scored(CPUAccelerator(), num_images, batch)
    for stats in run_on_ranks(scored_on_mesh, 2, settings, num_images, batch):
        assert stats["images"] == num_images
        assert stats["acc1"] == expected["acc1"]
        assert stats["acc5"] == expected["acc5"]
        assert abs(stats["loss"] - expected["loss"]) < 1e-6


def test_fewer_than_five_classes_are_scored():
    accelerator = CPUAccelerator()
    accelerator.prepare(nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 3)))
    stats = evaluate(accelerator, [(torch.randn(5, 3, 4, 4), torch.tensor([0, 1, 2, 0, 1]))])
    assert stats["acc5"] == 100.0


def toy_state(lr: float = 5e-4) -> TrainState:
    accelerator = CPUAccelerator()
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    accelerator.prepare(model)
    optimizer = OptimizerCfg(lr=lr).build(model, global_batch=512)
    return TrainState(accelerator, optimizer, LrSchedulerCfg().build(optimizer, epochs=10, seed=0))


def test_an_epoch_takes_exactly_the_steps_it_was_given_and_averages_their_losses(capsys):
    state = toy_state()
    batches = [(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
    first = F.cross_entropy(state.accelerator.model(batches[0][0]), batches[0][1]).item()
    stats = train_one_epoch(state, batches, num_batches=3, criterion=nn.CrossEntropyLoss())
    assert state.step == 3
    assert stats["lr"] == pytest.approx(1e-6)
    printed = capsys.readouterr().out
    assert "Epoch: [0]  [0/3]  eta: 0:00:00  loss: " in printed
    assert f"{first:.4f} ({first:.4f})" in printed
    assert "Averaged stats:" in printed


def test_a_loss_that_is_not_finite_stops_before_the_step_and_changes_no_weight():
    state = toy_state()
    before = [parameter.clone() for parameter in state.accelerator.model.parameters()]
    batches = [(torch.full((2, 3, 2, 2), math.nan), torch.tensor([0, 1]))]
    with pytest.raises(NonFiniteLoss, match=r"the loss is nan at step 0 \(epoch 0\), lr 1e-06"):
        train_one_epoch(state, batches, num_batches=1, criterion=nn.CrossEntropyLoss())
    assert all(torch.equal(old, new) for old, new in zip(before, state.accelerator.model.parameters(), strict=True))
    assert state.step == 0
