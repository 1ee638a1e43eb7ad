import sys
import types

from tinyexp.observability.wandb_log import WandbCfg


def test_rows_reach_a_run_which_is_finished(monkeypatch):
    calls = []

    class Run:
        def log(self, row, step):
            calls.append(("log", row, step))

        def finish(self):
            calls.append(("finish",))

    fake = types.ModuleType("wandb")
    monkeypatch.setattr(fake, "init", lambda **settings: calls.append(("init", settings)) or Run(), raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = WandbCfg(enable_wandb=True).build("run", {"seed": 0})
    assert log is not None
    log.write_epoch({"epoch": 3, "train_loss": 1.0})
    log.close()
    assert calls == [
        ("init", {"project": "tinyexp", "name": "run", "config": {"seed": 0}}),
        ("log", {"epoch": 3, "train_loss": 1.0}, 3),
        ("finish",),
    ]


def test_it_is_off_by_default_and_a_missing_package_is_named(monkeypatch):
    assert WandbCfg().problems() == []
    assert WandbCfg().build("run", {}) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install wandb" in WandbCfg(enable_wandb=True).problems()[0]
