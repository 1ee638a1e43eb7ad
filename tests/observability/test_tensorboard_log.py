import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.disk import full_beyond
from tinyexp.observability.tensorboard_log import TensorboardCfg, TensorboardLog


def written(folder, first_step, num_steps, *, epoch_ends=()):
    log = TensorboardLog(folder, first_step=first_step)
    for step in range(first_step, first_step + num_steps):
        log.write_step({"step": step, "epoch": 0, "loss": 10.0 * first_step + step, "link_share": None, "time": "now"})
        if step + 1 in epoch_ends:
            log.write_epoch({"epoch": 0, "test_acc1": float(first_step)}, step + 1)
    log.close()


def points(folder, tag):
    events = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_curves_of_steps_and_epochs_are_read_back_and_positions_and_null_are_no_curves(tmp_path):
    written(tmp_path, 0, 4, epoch_ends=(2, 4))
    assert points(tmp_path, "step/loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert points(tmp_path, "epoch/test_acc1") == [(2, 0.0), (4, 0.0)]
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == ["step/loss", "epoch/test_acc1"]


def test_after_a_resume_no_curve_doubles_back(tmp_path):
    written(tmp_path, 0, 6, epoch_ends=(2, 4, 6))
    written(tmp_path, 4, 4, epoch_ends=(6, 8))
    assert points(tmp_path, "step/loss") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 44), (5, 45), (6, 46), (7, 47)]
    assert [step for step, _ in points(tmp_path, "epoch/test_acc1")] == [
        2,
        6,
        8,
    ]  # that of step 4 comes again, from its evaluation


def test_a_loss_that_is_not_finite_is_a_point_that_says_so(tmp_path):
    log = TensorboardLog(tmp_path, first_step=0)
    log.write_step({"step": 0, "loss": math.nan})
    log.close()
    ((step, value),) = points(tmp_path, "step/loss")
    assert step == 0
    assert math.isnan(value)


def test_a_full_disk_costs_the_points_that_it_does_not_take_and_no_traceback(tmp_path, capfd):
    log = TensorboardLog(tmp_path, first_step=0)
    log.write_step({"step": 0, "loss": 0.5})
    (file,) = tmp_path.iterdir()
    for step in (1, 2):
        with full_beyond(file.stat().st_size + 10), pytest.raises(OSError):
            log.write_step({"step": step, "loss": 0.5})
    log.write_step({"step": 3, "loss": 0.5})
    log.close()
    assert [step for step, _ in points(tmp_path, "step/loss")] == [0, 3]
    assert capfd.readouterr().err == ""


def test_it_is_on_by_default_can_be_switched_off_and_a_missing_package_is_named(tmp_path, monkeypatch):
    assert TensorboardCfg().problems() == []
    assert TensorboardCfg(enable_tensorboard=False).build(tmp_path, first_step=0) is None
    log = TensorboardCfg().build(tmp_path, first_step=0)
    assert log is not None
    log.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "tensorboard_cfg.enable_tensorboard=false" in TensorboardCfg().problems()[0]
    assert TensorboardCfg(enable_tensorboard=False).problems() == []
