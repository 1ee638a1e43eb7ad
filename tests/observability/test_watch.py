import json
import logging
from dataclasses import asdict

from tinyexp.observability.mlflow_log import MlflowCfg
from tinyexp.observability.status import Status
from tinyexp.observability.tensorboard_log import TensorboardCfg
from tinyexp.observability.wandb_log import WandbCfg
from tinyexp.observability.watch import RunWatch, sinks_of_run

STATUS = Status(epoch=0, epochs=2, steps_in_epoch=4, steps=8, first_step=0)


class Sink:
    name = "a network"

    def __init__(self):
        self.calls = []
        self.is_down = False

    def _note(self, *call):
        if self.is_down:
            raise ConnectionError("no route to https://TOKEN@host")
        self.calls.append(call)

    def write_step(self, record):
        self._note("step", record["step"])

    def write_epoch(self, row, step):
        self._note("epoch", step)

    def close(self):
        self._note("close")


def test_a_sink_that_fails_is_said_once_counted_and_tried_again_and_the_others_lose_nothing(tmp_path, caplog):
    bad, good = Sink(), Sink()
    with RunWatch(STATUS, folder=tmp_path, openers={"bad": lambda: bad, "good": lambda: good}) as watch:
        for step in range(4):
            bad.is_down = step in (1, 2)
            watch.write_step({"step": step})
        watch.write_epoch({"test_acc1": 1.0}, 4)
    assert good.calls == [*(("step", step) for step in range(4)), ("epoch", 4), ("close",)]
    assert bad.calls == [("step", 0), ("step", 3), ("epoch", 4), ("close",)]
    assert watch.lost == {"a network": 2}
    assert [record.message for record in caplog.records] == [
        "a network does not take what the run tells it (no route to https://***@host); said once, the summary counts"
    ]


def test_a_sink_that_cannot_be_opened_refuses_every_record_and_the_run_goes_on(tmp_path, caplog):
    def fail():
        raise PermissionError("not logged in")

    with RunWatch(STATUS, folder=tmp_path, openers={"Remote": fail, "off": lambda: None}) as watch:
        watch.write_step({"step": 0})
        watch.write_step({"step": 1})
    assert watch.lost == {"Remote": 2}
    assert len(caplog.records) == 1
    assert "not logged in" in caplog.text


def test_the_status_says_what_the_run_does_and_how_it_ended(tmp_path):
    with RunWatch(STATUS, folder=tmp_path) as watch:
        assert Status.read(tmp_path) is None
        watch.enter(phase="training", epoch=1)
        watch.enter(top1=float("nan"))
        found = Status.read(tmp_path)
        assert found is not None and found.top1 is None
    assert (tmp_path / "status.json").exists()
    try:
        with RunWatch(STATUS, folder=tmp_path):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    ended = Status.read(tmp_path)
    assert ended is not None
    assert (ended.phase, ended.has_ended) == ("stopped", True)
    assert json.loads((tmp_path / "status.json").read_text()) == asdict(STATUS) | {"phase": "stopped"}


def test_a_rank_without_a_folder_writes_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO), RunWatch(STATUS) as watch:
        watch.enter(phase="training")
        watch.write_step({"step": 0})
    assert list(tmp_path.iterdir()) == []
    assert caplog.text == ""


def test_a_run_has_its_logs_and_tensorboard_by_default_and_no_network(tmp_path):
    openers = sinks_of_run(tmp_path, 0, 0, TensorboardCfg(), WandbCfg(), MlflowCfg(), run_name="run", config={})
    opened = [sink for opener in openers.values() if (sink := opener())]
    assert [sink.name for sink in opened] == ["metrics.jsonl", "log.txt", "TensorBoard"]
    for sink in opened:
        sink.close()
