import sys
import threading
import time
import types
from types import SimpleNamespace

import pytest

from tinyexp.observability import mlflow_log
from tinyexp.observability.mlflow_log import MlflowCfg
from tinyexp.observability.status import Status
from tinyexp.observability.watch import RunWatch


@pytest.fixture
def server(monkeypatch):
    """A stand-in for the package, which notes what it is asked for, and what it does before it takes figures."""
    calls, behaviour = [], {"send": lambda: None}

    class Client:
        def __init__(self, tracking_uri):
            calls.append(("connect", tracking_uri))

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            calls.append(("experiment", name))
            return "7"

        def create_run(self, experiment_id, run_name):
            calls.append(("run", experiment_id, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="r"))

        def update_run(self, run_id, status):
            calls.append((run_id, status))

        def log_batch(self, run_id, metrics=(), params=()):
            if metrics:
                behaviour["send"]()
            calls.extend((m.key, m.value, m.step) for m in metrics)
            calls.extend((p.key, p.value) for p in params)

        def set_terminated(self, run_id):
            calls.append(("end", run_id))

    entities, package = types.ModuleType("mlflow.entities"), types.ModuleType("mlflow")
    vars(entities)["Metric"] = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)
    vars(entities)["Param"] = lambda key, value: SimpleNamespace(key=key, value=value)
    vars(package)["MlflowClient"] = Client
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "1")  # which the log would leave behind
    return calls, behaviour


def opened(folder, config=None, first_step=0):
    log = MlflowCfg(enable_mlflow=True, tracking_uri="http://host:5000").build(folder, "run", config or {}, first_step=first_step)
    assert log is not None
    return log


def test_figures_and_keys_reach_a_run_which_is_ended_once_they_have_arrived(server, tmp_path):
    calls, _ = server
    log = opened(tmp_path, {"seed": 0, "ema_cfg": {"decay": 0.5}})
    log.write_step({"step": 7, "epoch": 3, "loss": float("nan"), "lr": 0.5, "link_share": None})
    log.write_epoch({"epoch": 3, "test_acc1": 50.0}, 8)
    log.close()
    assert calls == [
        ("connect", "http://host:5000"),
        ("experiment", "tinyexp"),
        ("run", "7", "run"),
        ("seed", "0"),
        ("ema_cfg.decay", "0.5"),
        ("step/lr", 0.5, 7),
        ("epoch/test_acc1", 50.0, 8),
        ("end", "r"),
    ]


def test_a_resumed_run_is_the_same_one_and_a_run_that_begins_anew_another(server, tmp_path):
    calls, _ = server
    for first_step in (0, 5, 0):
        opened(tmp_path, {"seed": 0}, first_step).close()
    begun = [("experiment", "tinyexp"), ("run", "7", "run"), ("seed", "0"), ("end", "r")]
    assert [call for call in calls if call[0] != "connect"] == [*begun, ("r", "RUNNING"), ("end", "r"), *begun]


def watched(folder, steps):
    """The records that a run of so many steps counts as lost."""
    openers = {"MLflow": lambda: opened(folder)}
    with RunWatch(Status(epoch=0, epochs=1, steps_in_epoch=steps, steps=steps, first_step=0), openers=openers) as watch:
        for step in range(steps):
            watch.write_step({"step": step, "lr": 0.5})
    return watch.lost


def test_each_record_that_a_server_refuses_is_counted(server, caplog, tmp_path):
    _, behaviour = server

    def refuse():
        raise ConnectionError("no route")

    behaviour["send"] = refuse
    assert watched(tmp_path, 120) == {"MLflow": 120}
    assert [record.message.count("no route") for record in caplog.records] == [1]


def test_a_server_that_takes_nothing_holds_no_step_and_no_end_and_what_it_has_not_taken_is_counted(server, monkeypatch, tmp_path):
    _, behaviour = server
    stands_still = threading.Event()
    behaviour["send"] = stands_still.wait
    monkeypatch.setattr(mlflow_log, "END_S", 0.2)
    monkeypatch.setattr(mlflow_log, "MOST_WAITING", 100)
    begun = time.monotonic()
    try:
        assert watched(tmp_path, 500) == {"MLflow": 500}
    finally:
        stands_still.set()
    assert time.monotonic() - begun < 5


def test_it_is_off_by_default_and_says_what_it_lacks(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert MlflowCfg().problems() == []
    assert MlflowCfg().build(tmp_path, "run", {}, first_step=0) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert "mlflow_cfg.tracking_uri" in MlflowCfg(enable_mlflow=True).problems()[0]
    assert MlflowCfg(enable_mlflow=True, tracking_uri="http://host").problems() == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install mlflow-skinny" in MlflowCfg(enable_mlflow=True).problems()[0]
