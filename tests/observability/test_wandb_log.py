import sys
import types

import pytest

from tinyexp.observability.wandb_log import WandbCfg


class Refused(Exception):
    """What the package raises without a login or a network."""


@pytest.fixture
def package(monkeypatch):
    """A stand-in for the package, which notes what it is asked for, and whether its server can be reached and takes all."""
    calls, can = [], {"connect": True, "finish": True}

    class Run:
        def define_metric(self, names, step_metric):
            calls.append((names, step_metric))

        def log(self, row):
            calls.append(row)

        def finish(self):
            if not can["finish"]:
                raise TimeoutError("not all is sent")

    def init(mode="online", **settings):
        calls.append((mode, settings))
        if mode == "online" and not can["connect"]:
            raise Refused("no route to https://me:secret@host")
        return Run()

    fake = types.ModuleType("wandb")
    vars(fake).update(init=init, Settings=dict, teardown=lambda: calls.append("teardown"))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return calls, can


def opened(folder, first_step=0):
    log = WandbCfg(enable_wandb=True).build(folder, "run", {"seed": 0}, first_step=first_step)
    assert log is not None
    return log


def test_figures_stand_over_optimizer_steps_in_a_run_of_the_run_folder(package, tmp_path):
    calls, _ = package
    log = opened(tmp_path)
    log.write_step({"step": 7, "epoch": 3, "loss": 2.0, "link_share": None, "time": "now"})
    log.write_epoch({"epoch": 3, "train_loss": 1.0}, 8)
    log.close()
    (mode, settings), *rest = calls
    assert mode == "online"
    assert {"project": "tinyexp", "name": "run", "config": {"seed": 0}, "dir": str(tmp_path)}.items() <= settings.items()
    assert rest == [
        ("step/*", "optimizer_step"),
        ("epoch/*", "optimizer_step"),
        {"step/loss": 2.0, "optimizer_step": 7},
        {"epoch/train_loss": 1.0, "optimizer_step": 8},
    ]


def test_a_resumed_run_is_the_same_one_and_a_run_that_begins_anew_another(package, tmp_path):
    calls, _ = package
    for first_step in (0, 5, 0):
        opened(tmp_path, first_step)
    begun, resumed, anew = [call[1] for call in calls if call[0] == "online"]
    assert begun["id"] == resumed["id"] != anew["id"]
    assert resumed["resume"] == "allow"


def test_curves_are_kept_where_the_server_does_not_take_the_run(package, tmp_path, caplog):
    calls, can = package
    can["connect"] = False
    opened(tmp_path)
    (_, asked), teardown, (mode, kept), *_ = calls
    assert (teardown, mode, kept) == ("teardown", "offline", asked)
    assert f"no route to https://me:***@host; the curves are kept in {tmp_path}/wandb, and `wandb sync" in caplog.text


def test_an_end_that_comes_too_soon_for_the_server_says_where_the_rest_is(package, tmp_path):
    _, can = package
    can["finish"] = False
    with pytest.raises(TimeoutError, match=rf"^not all is sent; the curves are kept in {tmp_path}/wandb, "):
        opened(tmp_path).close()


def test_it_is_off_by_default_and_a_missing_package_is_named(monkeypatch, tmp_path):
    assert WandbCfg().problems() == []
    assert WandbCfg().build(tmp_path, "run", {}, first_step=0) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install wandb" in WandbCfg(enable_wandb=True).problems()[0]
