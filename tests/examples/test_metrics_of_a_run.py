"""Case A18: the metrics file of whole runs, by a reader that accepts nothing beside JSON."""

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.traced import Begun, run_here, trace
from tests.observability.test_step_log import strictly
from tests.observability.test_tensorboard_log import points

ONE = ["ray_cfg.ray_num_worker=1", "dataloader_cfg.train_batch_size_per_device=16"]
MESHES = {"tp_1": ONE, "tp_2": ["ray_cfg.ray_num_worker=2"]}
EPOCH = 4  # steps


def records(folder: Path) -> list[dict]:
    return strictly(folder / "run" / "metrics.jsonl")


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in records(folder)]


@pytest.fixture(params=MESHES)
def arguments(request, toy_set) -> list[str]:
    return [f'dataloader_cfg.data_root="{toy_set}"', *MESHES[request.param]]


def test_a_learning_rate_of_1e30_leaves_a_valid_file_also_after_a_resume(arguments, tmp_path):
    wild = [*arguments, "optimizer_cfg.lr=1e30"]
    assert run_here(tmp_path, *wild, "lr_scheduler_cfg.warmup_epochs=0", "max_train_steps=3") == 6
    assert steps(tmp_path) == [0, 1]
    assert records(tmp_path)[0]["loss"] > 0
    last = records(tmp_path)[-1]
    assert last["loss"] is None
    assert "loss" in last["nonfinite"]
    assert run_here(tmp_path, *wild, "max_train_steps=3") == 0  # within the epoch of warm-up, whose rate is small
    assert steps(tmp_path) == [0, 1, 2]
    assert strictly(tmp_path / "run" / "earlier-1" / "metrics.jsonl")[-1] == last
    for _ in range(2):
        assert run_here(tmp_path, *wild, "resume_from=auto") == 6
        assert steps(tmp_path) == list(
            range(2 * EPOCH + 2)
        )  # the rate rises after the epoch of warm-up, and is used one epoch later
        *good, last = records(tmp_path)
        assert all(record["loss"] > 0 and "nonfinite" not in record for record in good)
        assert last["loss"] is None
        assert last["lr"] > 1e25


@pytest.fixture(scope="module")
def stopped_and_resumed(toy_set, tmp_path_factory) -> tuple[Path, str, list[int]]:
    """A run of two ranks that a signal stops after step 6, and that is resumed; what it said, and its steps before that."""
    root = tmp_path_factory.mktemp("stopped")
    settings = [f'dataloader_cfg.data_root="{toy_set}"', "epochs=3", "tensorboard_cfg.enable_tensorboard=true"]
    first = Begun(root, *settings, "fault=1:5:sigterm")
    assert first.wait() == 143, first.said
    before = steps(root)
    second = Begun(root, *settings, "resume_from=auto", "fault=1:7:warn")
    assert second.wait() == 0, second.said
    return root, second.said, before


def test_the_last_step_before_a_stop_is_there_and_a_resumed_run_goes_on_from_it(stopped_and_resumed):
    folder, _, before = stopped_and_resumed
    assert before == list(range(7))  # a signal that comes in a step is met by the next one
    found = records(folder)
    assert [(record["step"], record["epoch"], record["epoch_step"]) for record in found] == [
        (step, step // EPOCH, step % EPOCH) for step in range(3 * EPOCH)
    ]


def test_one_record_a_step_speaks_for_all_ranks(stopped_and_resumed):
    folder, _, _ = stopped_and_resumed
    mine, theirs = (trace(folder / "run", rank) for rank in range(2))
    for record, one, other in zip(records(folder), mine, theirs, strict=True):
        assert record["step"] == one["step"]
        assert record["loss"] == pytest.approx((one["loss"] + other["loss"]) / 2)
        assert record["lr"] == one["lr"]
        assert 0 < record["data_s"] < record["step_s"]
        assert 0 < record["link_share"] < 1
        assert record["peak_memory_bytes"] > 2**20


def test_tensorboard_has_the_same_steps_once(stopped_and_resumed):
    folder, _, _ = stopped_and_resumed
    losses = points(folder / "run" / "tensorboard", "step/loss")
    assert [step for step, _ in losses] == list(range(3 * EPOCH))
    assert [loss for _, loss in losses] == pytest.approx([record["loss"] for record in records(folder)])
    assert [step for step, _ in points(folder / "run" / "tensorboard", "epoch/test_acc1")] == [EPOCH, 2 * EPOCH, 3 * EPOCH]
    assert len(points(folder / "run" / "tensorboard", "epoch/ema_test_loss")) == 3


def test_the_console_has_each_line_once_and_each_rank_a_file(stopped_and_resumed):
    folder, said, _ = stopped_and_resumed
    assert said.count("Epoch: [2]  [0/4]") == 1
    assert said.count("WARNING: rank 1: a warning of the test") == 1
    for rank in range(2):
        text = (folder / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert text.count("Epoch: [2]  [0/4]") == 1
        assert text.count(f"rank {rank} of 2 starts") == 2
        assert ("WARNING a warning of the test" in text) == (rank == 1)


def test_the_summary_and_the_closing_table_say_where_the_curves_are(stopped_and_resumed):
    folder, said, _ = stopped_and_resumed
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["metrics"] == str(folder / "run" / "metrics.jsonl")
    assert summary["tensorboard"] == str(folder / "run" / "tensorboard")
    assert summary["records_lost"] == {}
    assert "tensorboard --logdir" in said
    assert json.loads((folder / "run" / "status.json").read_text())["phase"] == "finished"


@pytest.mark.parametrize(("fault", "name"), [("nan", "loss"), ("nan_gradient", "gradient")])
def test_a_step_that_another_rank_refuses_is_recorded_by_the_main_one(toy_set, tmp_path, fault, name):
    arguments = [f'dataloader_cfg.data_root="{toy_set}"', "accelerator_cfg.accelerator=ddp", f"fault=1:2:{fault}"]
    assert run_here(tmp_path, *arguments) == 6
    assert steps(tmp_path) == [0, 1, 2]
    last = records(tmp_path)[-1]
    assert last[name] is None
    assert name in last["nonfinite"]


def test_files_beside_the_checkpoints_that_cannot_be_written_end_no_run(toy_set, tmp_path):
    arguments = [f'dataloader_cfg.data_root="{toy_set}"', *ONE, "epochs=2"]
    assert run_here(tmp_path, *arguments, "max_train_steps=1") == 0
    names = ("run.json", "log.txt", "metrics.jsonl", "status.json", "curves.png", "summary.json")
    for name in names:
        (tmp_path / "run" / name).unlink()
        (tmp_path / "run" / name).mkdir()
    resumed = Begun(tmp_path, *arguments, "resume_from=auto")
    assert resumed.wait() == 0, resumed.said
    assert "Traceback" not in resumed.said
    assert [resumed.said.count(f"{name} could not be written: Is a directory") for name in names] == [1, 0, 0, 0, 1, 1]
    assert [resumed.said.count(f"WARNING: {name} does not take") for name in names] == [0, 1, 1, 1, 0, 0]
    assert "log.txt: 2" in resumed.said  # of the closing table
    checkpoint = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert checkpoint["tinyexp"]["step"] == 2 * EPOCH
