"""From which checkpoint a run starts, and what becomes of the files that it finds in its folder."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.helpers.traced import Begun, TracedExp, trace
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.errors import CheckpointError
from tinyexp.examples.run_start import RUN_IDS, find_start
from tinyexp.experiment.entry import run_command
from tinyexp.experiment.run_id import new_run, run_id
from tinyexp.training.checkpoint_file import read_checkpoint

ALONE = ["ray_cfg.ray_num_worker=1", "dataloader_cfg.train_batch_size_per_device=16", "epochs=1"]
BOTH = ["accelerator_cfg.accelerator=ddp", "epochs=1"]


@pytest.fixture(scope="module")
def begin(toy_set):
    """Start the experiment below a folder, and wait for its end."""

    def start(root: Path, *arguments: str) -> Begun:
        command = Begun(root, f'dataloader_cfg.data_root="{toy_set}"', *arguments)
        command.wait()
        return command

    return start


@pytest.fixture(scope="module")
def made(begin, tmp_path_factory) -> Path:
    """The folder of a run of two steps, which was given an address with a password and a token."""
    root = tmp_path_factory.mktemp("made")
    command = begin(root, *ALONE, "max_train_steps=2", 'mlflow_cfg.tracking_uri="https://me:hunter2@host/a?token=hunter2"')
    assert command.status == 0, command.said
    return root / "run"


@pytest.fixture
def old(made, tmp_path) -> Path:
    """A copy of that folder, in which another run starts."""
    return shutil.copytree(made, tmp_path / "run")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in trace(folder)]


def test_no_file_of_a_run_holds_the_secrets_of_an_address(made):
    files = [path for path in made.rglob("*") if path.is_file()]
    assert {"last.ckpt", "best.ckpt", "run.json"} <= {path.name for path in files}
    assert read_checkpoint(made / "last.ckpt")["args"]["mlflow_cfg"]["tracking_uri"] == "https://me:***@host/a?token=***"
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_an_evaluation_that_is_started_again_scores_the_weights_that_were_asked_for(begin, made, old, tmp_path):
    asked = f"{old}/../asked.ckpt"
    shutil.copy(made / "last.ckpt", asked)
    again = ["mode=eval", f'resume_from="{asked}"', "fault=1:-1:kill", "max_restarts=1"]
    command = begin(tmp_path, *BOTH, *again)
    assert command.status == 0, command.said
    assert "restart 1 of 1" in command.said
    assert f"resumed from {asked} at" in command.said
    told = json.loads((old / "eval.json").read_text())
    assert told["weights"] == str(tmp_path / "asked.ckpt")
    assert f"resume_from={tmp_path}/asked.ckpt" in told["run"]["command"]


def test_an_evaluation_of_the_newest_checkpoint_names_its_file(begin, old, tmp_path):
    command = begin(tmp_path, *ALONE, "mode=eval", "resume_from=auto")
    assert command.status == 0, command.said
    told = json.loads((old / "eval.json").read_text())
    assert told["weights"] == told["run"]["config"]["resume_from"]
    assert told["weights"] in {f"{old}/last.ckpt", f"{old}/best.ckpt"}
    assert "auto" not in told["run"]["command"]


@pytest.mark.parametrize("mode", ["eval", "bench", "verify"])
def test_without_a_checkpoint_auto_is_refused_before_anything_starts_by_every_mode_but_train(mode, toy_set, tmp_path, capsys):
    arguments = [f'dataloader_cfg.data_root="{toy_set}"', f'output_root="{tmp_path}"', f"mode={mode}", "resume_from=auto"]
    assert run_command(TracedExp, arguments) == 4
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: resume_from=auto: mode={mode} needs weights, and {tmp_path}/run holds no checkpoint;")
    assert "set resume_from=<path>" in printed.err
    assert (printed.out, names(tmp_path)) == ("", set())


def test_a_checkpoint_that_is_gone_by_the_time_the_ranks_look_is_no_licence_for_random_weights(tmp_path):
    keys = TracedExp(mode="eval", resume_from="auto", output_root=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"^resume_from=auto: mode=eval needs weights"):
        find_start(keys, CPUAccelerator())


def test_a_rank_lost_before_the_folder_was_taken_leaves_a_run_that_starts_as_it_was_asked_to(begin, old, tmp_path):
    (old / "trace-0.jsonl").unlink()
    command = begin(tmp_path, *BOTH, "fault=1:-1:kill", "max_restarts=1")
    assert command.status == 0, command.said
    assert steps(old) == [0, 1, 2, 3]
    assert {"last.ckpt", "run.json"} <= names(old / "earlier-1")
    assert "earlier-2" not in names(old)


def test_ranks_started_again_by_whoever_took_the_folder_continue_and_no_other_run_does(old, monkeypatch):
    asked = TracedExp(output_root=str(old.parent), resume_from="elsewhere.ckpt")
    first, other = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": "/tmp/a/attempt_0/0/error.json"}, {}
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    record = json.loads((old / "run.json").read_text())
    assert len(record[RUN_IDS]) == 1
    (old / "run.json").write_text(json.dumps(record | {RUN_IDS: [*record[RUN_IDS], run_id()]}))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/a/attempt_1/1/error.json")
    start = find_start(asked, CPUAccelerator())
    assert (Path(start.source).parent, start.keeps_folder) == (old, True)
    for other in ("/tmp/b/attempt_1/1/error.json", ""):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", other)
        start = find_start(asked, CPUAccelerator())
        assert (start.source, start.keeps_folder) == ("elsewhere.ckpt", False)


def test_a_run_of_this_command_has_a_name_of_its_own_and_a_process_that_nobody_started_none(monkeypatch):
    for name in ("TINYEXP_RUN", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    found = []
    for _ in range(2):
        with new_run():
            found.append(run_id())
            assert os.environ["TINYEXP_RUN"] == run_id()
    assert len({*found, ""}) == 3
    assert run_id() == ""


@pytest.mark.parametrize("way", ["link/last.ckpt", "run/../run/last.ckpt", "link-to-file.ckpt"])
def test_its_own_checkpoint_is_continued_whatever_way_leads_to_it(begin, old, tmp_path, way):
    (tmp_path / "link").symlink_to(old)
    (tmp_path / "link-to-file.ckpt").symlink_to(old / "last.ckpt")
    keys = TracedExp(output_root=str(tmp_path), resume_from=f"{tmp_path}/{way}")
    assert find_start(keys, CPUAccelerator()).keeps_folder
    if way == "link/last.ckpt":
        command = begin(tmp_path, *ALONE, f'resume_from="{tmp_path}/{way}"')
        assert command.status == 0, command.said
        assert steps(old) == [0, 1, 2, 3]
        assert "earlier-1" not in names(old)


def test_a_training_does_not_begin_with_weights_that_it_would_move_aside(toy_set, old, tmp_path, capsys):
    arguments = [f'dataloader_cfg.data_root="{toy_set}"', f'output_root="{tmp_path}"', *ALONE]
    assert run_command(TracedExp, [*arguments, f'module_cfg.pretrained_from="{old}/best.ckpt"']) == 2
    assert f"module_cfg.pretrained_from={old}/best.ckpt: a training moves aside what lies in its own" in capsys.readouterr().err
    aside = shutil.copytree(old, old / "earlier-1")
    keys = TracedExp(output_root=str(tmp_path))
    keys.dataloader_cfg.data_root, keys.module_cfg.pretrained_from = str(toy_set), f"{aside}/best.ckpt"
    assert keys.problems() == []


def test_a_damaged_checkpoint_from_elsewhere_ends_the_run_and_moves_nothing(begin, made, old, tmp_path):
    whole = (made / "last.ckpt").read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    before = names(old)
    command = begin(tmp_path, *ALONE, f'resume_from="{tmp_path}/cut.ckpt"')
    assert command.status == 4
    assert f"checkpoint {tmp_path}/cut.ckpt is incomplete or corrupt" in command.said
    assert {name for name in names(old) - before if not name.startswith(("pid-", "."))} <= {"logs"}
    assert before <= names(old)
