import os
import resource
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.equality import GLOBAL_BATCH, build_noisy
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.errors import CheckpointError
from tinyexp.examples.vit_tp_exp import LAYOUT
from tinyexp.training import checkpoint_keeper
from tinyexp.training.checkpoint import CheckpointCfg
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.checkpoint_keeper import CheckpointKeeper
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.state import TrainState


@pytest.fixture
def state() -> TrainState:
    accelerator = CPUAccelerator()
    model = build_noisy("deit_digits_patch8_32")
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=GLOBAL_BATCH)
    return TrainState(accelerator, optimizer, LrSchedulerCfg().build(optimizer, epochs=10, seed=0))


def keeper_in(folder: Path, state: TrainState, **settings: int) -> CheckpointKeeper:
    return CheckpointKeeper(folder, CheckpointCfg(**settings), LAYOUT, state.accelerator)  # pyright: ignore[reportArgumentType]


def save(keeper: CheckpointKeeper, state: TrainState, step: int) -> None:
    state.step, state.epoch_step = step, step
    keeper.save(state, args={}, facts={})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_save_returns_before_the_file_is_written_and_holds_the_state_of_its_moment(tmp_path, state, monkeypatch):
    may_write, original = threading.Event(), checkpoint_keeper.save_checkpoint

    def wait_and_save(*arguments, **options):
        assert may_write.wait(10)
        original(*arguments, **options)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", wait_and_save)
    with keeper_in(tmp_path, state) as keeper:
        before = state.accelerator.whole_weights()["head.weight"]
        save(keeper, state, 1)
        with torch.no_grad():
            state.accelerator.model.head.weight.add_(1.0)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        assert names(tmp_path) == []
        may_write.set()
    assert torch.equal(read_checkpoint(tmp_path / "last.ckpt")["model"]["head.weight"], before)


def test_the_end_of_the_block_waits_for_the_save_even_after_an_error(tmp_path, state, monkeypatch):
    original = checkpoint_keeper.save_checkpoint

    def save_slowly(*arguments, **options):
        time.sleep(0.5)
        original(*arguments, **options)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", save_slowly)
    with pytest.raises(ZeroDivisionError), keeper_in(tmp_path, state) as keeper:
        save(keeper, state, 1)
        _ = 1 / 0
    assert names(tmp_path) == ["last.ckpt"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells threads apart")
def test_a_save_computes_where_nothing_else_wants_to_until_something_waits_for_it(tmp_path, state, monkeypatch):
    idle = os.SCHED_IDLE if checkpoint_keeper._idle_can_be_left() else os.SCHED_OTHER
    is_idle = threading.Event()

    def is_scheduled_as(policy):
        end = time.monotonic() + 60
        while os.sched_getscheduler(threading.get_native_id()) != policy:
            if time.monotonic() > end:
                raise CheckpointError(f"the save never came to policy {policy}")
            time.sleep(0.01)

    def idle_then_as_all(*_arguments, **_options):
        is_scheduled_as(idle)
        is_idle.set()
        is_scheduled_as(os.SCHED_OTHER)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", idle_then_as_all)
    with keeper_in(tmp_path, state, allow_save_failures=0) as keeper:
        save(keeper, state, 1)
        assert is_idle.wait(60)
        keeper.wait()
        monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", lambda *_, **__: is_scheduled_as(os.SCHED_OTHER))
        save(keeper, state, 2)
        keeper.wait()  # at once, as after a signal


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root of a Linux can give its rights away")
def test_a_save_is_not_made_idle_by_a_user_who_could_not_take_that_back():
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
        os.setresuid(65534, 65534, 65534)
        os._exit(int(checkpoint_keeper._idle_can_be_left.__wrapped__()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_saves_are_never_under_way_at_once(tmp_path, state, monkeypatch):
    under_way, most, original = 0, 0, checkpoint_keeper.save_checkpoint

    def counted(*arguments, **options):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.1)
        original(*arguments, **options)
        under_way -= 1

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", counted)
    with keeper_in(tmp_path, state) as keeper:
        for step in (1, 2, 3):
            save(keeper, state, step)
        keeper.save_best(state)
    assert most == 1


def test_a_position_that_is_saved_is_not_saved_again(tmp_path, state, capsys):
    with keeper_in(tmp_path, state) as keeper:
        for _ in range(3):
            save(keeper, state, 4)
    assert capsys.readouterr().out.count("saved step 4") == 1


def test_the_newest_step_files_stay(tmp_path, state):
    with keeper_in(tmp_path, state, save_every_steps=1, keep_step_ckpts=2) as keeper:
        for step in (1, 2, 3, 4):
            save(keeper, state, step)
    assert names(tmp_path) == ["last.ckpt", "previous.ckpt", "step-00000003.ckpt", "step-00000004.ckpt"]


def test_the_best_keeps_the_score_that_was_found_after_it_was_saved(tmp_path, state):
    with keeper_in(tmp_path, state) as keeper:
        save(keeper, state, 1)
        state.max_accuracy = state.last_accuracy = 71.5
        keeper.save_best(state)
    best, last = (read_checkpoint(tmp_path / name) for name in ("best.ckpt", "last.ckpt"))
    assert (best["tinyexp"]["max_accuracy"], best["tinyexp"]["last_accuracy"]) == (71.5, 71.5)
    assert last["tinyexp"]["max_accuracy"] == -1.0
    assert all(torch.equal(best["model"][name], value) for name, value in last["model"].items())


@pytest.fixture
def full_disk(monkeypatch):
    """From the moment it is filled no checkpoint can be written."""
    original = checkpoint_keeper.save_checkpoint

    class Disk:
        full = False

    def save_or_fail(checkpoint, path, **options):
        if Disk.full:
            raise CheckpointError(
                f"cannot save the checkpoint {path}: No space left on device; earlier checkpoints are untouched"
            )
        original(checkpoint, path, **options)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", save_or_fail)
    return Disk


def test_two_failed_saves_in_a_row_are_survived_and_the_third_ends_the_run(tmp_path, state, full_disk, caplog):
    with (
        pytest.raises(CheckpointError, match=r"3 saves in a row have failed.*No space left"),
        keeper_in(tmp_path, state) as keeper,
    ):
        save(keeper, state, 1)
        keeper.wait()
        full_disk.full = True
        for step in (2, 3, 4, 5):
            save(keeper, state, step)
    assert len([record for record in caplog.records if "No space left" in record.getMessage()]) == 3
    assert read_checkpoint(tmp_path / "last.ckpt")["tinyexp"]["step"] == 1


def test_a_disk_that_has_room_again_is_used_again(tmp_path, state, full_disk):
    with keeper_in(tmp_path, state) as keeper:
        for step, is_full in ((1, True), (2, True), (3, False), (4, True), (5, False)):
            keeper.wait()
            full_disk.full = is_full
            save(keeper, state, step)
    assert read_checkpoint(tmp_path / "last.ckpt")["tinyexp"]["step"] == 5


def test_a_run_whose_last_save_failed_does_not_end_well(tmp_path, state, full_disk):
    full_disk.full = True
    with (
        pytest.raises(CheckpointError, match="the last checkpoint of the run could not be saved"),
        keeper_in(tmp_path, state) as keeper,
    ):
        save(keeper, state, 1)


def test_values_that_are_not_finite_are_never_written(tmp_path, state, caplog):
    with pytest.raises(CheckpointError, match=r"model\.head\.weight is not finite"), keeper_in(tmp_path, state) as keeper:
        save(keeper, state, 1)
        keeper.wait()
        with torch.no_grad():
            state.accelerator.model.head.weight[0, 0] = torch.nan  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue, reportArgumentType]
        save(keeper, state, 2)
    assert read_checkpoint(tmp_path / "last.ckpt")["tinyexp"]["step"] == 1
