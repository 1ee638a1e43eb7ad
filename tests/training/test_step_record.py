import math
import time
from datetime import datetime

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.equality import build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tests.training.test_epoch import toy_state
from tinyexp.errors import NonFiniteLoss
from tinyexp.parallel.report import ALL_GATHER, TrafficCounter, total
from tinyexp.parallel.waiting import WAITING, Waiting
from tinyexp.training.epoch import Guards, train_one_epoch, train_step
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.state import TrainState

NAME = "deit_digits_patch8_32"


def batches(number, value=None):
    for _ in range(number):
        time.sleep(0.02)
        images = torch.randn(4, 3, 2, 2) if value is None else torch.full((4, 3, 2, 2), value)
        yield images, torch.tensor([0, 1, 2, 0])


def test_every_step_has_one_record_with_what_it_was_and_took():
    records = []
    state = toy_state()
    train_one_epoch(
        state, batches(3), num_batches=3, criterion=torch.nn.CrossEntropyLoss(), guards=Guards(observe=records.append)
    )
    assert [(record["step"], record["epoch"], record["epoch_step"]) for record in records] == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    assert [record["loss"] for record in records] == pytest.approx(list(state.meters["loss"].recent))
    for record in records:
        assert record["lr"] == pytest.approx(1e-6)
        assert 0.02 <= record["data_s"] <= record["step_s"]
        assert record["images_per_s"] == pytest.approx(4 / record["step_s"])
        assert record["link_share"] is None
        assert record["peak_memory_bytes"] > 2**20
        assert datetime.fromisoformat(record["time"]).tzinfo is not None
        assert "gradient" not in record


def test_a_step_that_is_refused_for_a_nan_has_its_record_too():
    records = []
    with pytest.raises(NonFiniteLoss):
        train_one_epoch(
            toy_state(),
            batches(1, math.nan),
            num_batches=1,
            criterion=torch.nn.CrossEntropyLoss(),
            guards=Guards(observe=records.append),
        )
    (record,) = records
    assert record["step"] == 0
    assert math.isnan(record["loss"])
    assert math.isnan(record["gradient"])


def watched(settings, at_exchange):
    """The collectives of a step and of its backward alone; then records of two epochs of a step each.

    To both rank 1 brings its images 0.3 s late, under tp 0.3 s after rank 0 has begun to wait for it in an exchange: then there
    is a file `at_exchange`. To the second epoch rank 0 itself comes 2 s late.
    """
    torch.set_num_threads(1)
    accelerator = build_accelerator(**settings)
    model = build_noisy(NAME)
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=4)
    state = TrainState(accelerator, optimizer, LrSchedulerCfg().build(optimizer, epochs=10, seed=0))
    rank = accelerator.world.rank
    images, targets = torch.randn(2, 3, 32, 32), torch.tensor([rank, 1])

    def criterion(logits, targets):
        return F.cross_entropy(logits.float(), targets)

    for _ in range(2):  # DistributedDataParallel forms its buckets anew after the first step
        train_step(state, images, targets, criterion=criterion)
    with TrafficCounter() as alone:
        accelerator.backward(criterion(accelerator.training_model(images), targets))
    accelerator.parameters.clear_gradients()
    with TrafficCounter() as whole:
        loss = train_step(state, images, targets, criterion=criterion, data_s=0.5 * rank)
    verdict, records = state.verdict, []

    def loader():
        while rank and "activations" in settings and not at_exchange.exists():
            time.sleep(0.001)
        time.sleep(0.3 * rank)
        yield images, targets

    class Told(Waiting):
        def __enter__(self):
            super().__enter__()
            at_exchange.touch()
            return self

    if accelerator.is_main:
        WAITING.__class__ = Told
    for late_s in (0.0, 2.0):
        accelerator.barrier()
        at_exchange.unlink(missing_ok=True)
        accelerator.barrier()
        if accelerator.is_main:
            time.sleep(late_s)  # as where it tells of the epoch before
        state.epoch_step = 0
        train_one_epoch(state, loader(), num_batches=1, criterion=criterion, guards=Guards(observe=records.append))
    return total(alone.traffic), total(whole.traffic), loss, verdict, records


@pytest.mark.parametrize("settings", [{"activations": "sharded"}, {"accelerator": "ddp"}], ids=["tp", "ddp"])
def test_a_step_costs_one_small_exchange_and_the_main_rank_records_what_all_of_them_saw(settings, tmp_path):
    (alone, whole, loss, verdict, records), (_, _, other_loss, other_verdict, others) = run_on_ranks(
        watched, 2, settings, tmp_path / "at an exchange"
    )
    extra = [line for line in whole if line not in alone]
    assert sum(line.calls for line in whole) == sum(line.calls for line in alone) + 1
    assert [line.kind for line in extra] == [ALL_GATHER]
    assert sum(line.sent_bytes for line in whole) - sum(line.sent_bytes for line in alone) == 4 * 8
    assert verdict == other_verdict
    assert verdict.loss == pytest.approx((loss + other_loss) / 2)
    assert loss != other_loss
    assert verdict.data_s == 0.5
    assert others == []
    record, after_a_pause = records
    assert record["data_s"] >= 0.3  # of the rank that came late
    assert 0.3 <= after_a_pause["data_s"] < 2  # without the pause of the main rank
    assert record["images_per_s"] == pytest.approx(4 / record["step_s"])
    if "activations" in settings:
        assert 0.3 / record["step_s"] <= record["link_share"] <= 1
    else:
        assert record["link_share"] is None  # torch waits
