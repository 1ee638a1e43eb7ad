"""What becomes of a run that is stopped or breaks: cases A11 to A13, under each launcher."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.traced import Begun, run_here, trace
from tests.launch.conftest import ROOT, is_alive
from tinyexp.training.checkpoint import CheckpointCfg, newest_good
from tinyexp.training.checkpoint_file import read_checkpoint

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
FAST = ["accelerator_cfg.accelerator=ddp", "epochs=2"]
END_S = 30.0


class Command:
    """The experiment as a user starts it, in processes of its own."""

    def __init__(self, launcher: str, root: Path, *arguments: str, torchrun: tuple[str, ...] = TORCHRUN) -> None:
        self.output = root / "output.txt"
        program = [*torchrun, "-m"] if launcher == "torchrun" else []
        chosen = [] if launcher == "torchrun" else [f"launcher={launcher}"]
        root.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, "tests.helpers.traced", f'output_root="{root}"', *chosen, *arguments],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        code = self.process.wait(240)
        return code if code >= 0 else 128 - code

    @property
    def said(self) -> str:
        return self.output.read_text()


@pytest.fixture
def begin(toy_set) -> Iterator[Callable[..., Begun | Command]]:
    """Start a run under a launcher. `local` is forked from here, the others are commands of their own."""
    commands: list[Begun | Command] = []

    def start(launcher: str, root: Path, *arguments: str, **options) -> Begun | Command:
        settings = [f'dataloader_cfg.data_root="{toy_set}"', *arguments]
        command = Begun(root, *settings) if launcher == "local" else Command(launcher, root, *settings, **options)
        commands.append(command)
        return command

    yield start
    for command in commands:
        print(command.said)  # which pytest shows of a test that has failed
        if is_alive(command.pid):
            os.kill(command.pid, signal.SIGKILL)
            command.wait()


def steps(folder: Path, rank: int = 0) -> list[int]:
    return [line["step"] for line in trace(folder, rank)] if (folder / f"trace-{rank}.jsonl").exists() else []


def wait_for(condition: Callable[[], bool], seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def ranks_alive(folder: Path) -> list[int]:
    """The pids of the ranks that are there."""
    pids = [int(path.name.partition("-")[2]) for path in folder.glob("pid-*")]
    return [pid for pid in pids if is_alive(pid)]


def left_over(folder: Path) -> list[int]:
    """The ranks of the run that are still there 10 s later."""
    deadline = time.monotonic() + 10
    while (left := ranks_alive(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def signal_again(pid: int, folder: Path) -> None:
    """SIGTERM until the ranks are gone: one that is handled too soon after the first counts as its repetition."""
    time.sleep(1.0)
    assert len(ranks_alive(folder)) == 2
    while ranks_alive(folder):
        os.kill(pid, signal.SIGTERM)
        again = time.monotonic() + 5.0
        while ranks_alive(folder) and time.monotonic() < again:
            time.sleep(0.05)


def weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return read_checkpoint(folder / name)["model"]


def same_weights(one: Path, other: Path) -> bool:
    theirs = weights(other)
    return all(torch.equal(value, theirs[name]) for name, value in weights(one).items())


@pytest.fixture(scope="module")
def straight(toy_set, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("straight")
    assert run_here(root, f'dataloader_cfg.data_root="{toy_set}"', *FAST) == 0
    return root / "run"


# --- signals: case A12


@pytest.mark.parametrize("launcher", ["local", "torchrun", pytest.param("ray", marks=pytest.mark.ray)])
def test_sigterm_stops_all_ranks_after_one_step_and_the_resumed_run_is_the_uninterrupted_one(begin, straight, tmp_path, launcher):
    folder = tmp_path / "run"
    command = begin(launcher, tmp_path, *FAST, "step_seconds=5")  # so that the signal arrives within the epoch
    wait_for(lambda: len(steps(folder)) >= 1)
    asked = time.monotonic()
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == (1 if launcher == "torchrun" else 143), command.said  # torchrun's own status, whatever its ranks say
    assert time.monotonic() - asked < 60
    assert steps(folder) == steps(folder, 1) == list(range(len(steps(folder))))
    done = len(steps(folder))
    assert f"stopped by SIGTERM after step {done} (epoch 0, step {done} of it): saved in" in command.said
    assert "Traceback" not in command.said or launcher == "torchrun"  # torchrun shows one of its own
    assert read_checkpoint(folder / "last.ckpt")["tinyexp"]["step"] == done
    assert left_over(folder) == []
    assert begin("local", tmp_path, *FAST, "resume_from=auto").wait() == 0
    assert trace(folder) == trace(straight)
    assert (folder / "log.txt").read_text() == (straight / "log.txt").read_text()
    assert same_weights(folder, straight)


def test_sigint_gives_status_130_and_says_so(begin, tmp_path):
    command = begin("local", tmp_path, *FAST, "step_seconds=5")
    wait_for(lambda: len(steps(tmp_path / "run")) >= 1)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait() == 130
    assert "stopped by SIGINT after step" in command.said
    assert left_over(tmp_path / "run") == []


def test_a_signal_to_one_rank_stops_all_of_them(begin, tmp_path):
    command = begin("local", tmp_path, *FAST, "fault=1:3:sigterm")
    assert command.wait() == 143
    assert steps(tmp_path / "run") == steps(tmp_path / "run", 1) == [0, 1, 2, 3]


@pytest.mark.parametrize("launcher", ["local", "torchrun", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_second_signal_leaves_at_once_and_tears_no_file(begin, tmp_path, launcher):
    folder = tmp_path / "run"
    assert begin("local", tmp_path, *FAST, "max_train_steps=4").wait() == 0
    before = weights(folder)
    command = begin(launcher, tmp_path, *FAST, "resume_from=auto", "fault=0:5:hang")
    wait_for(lambda: 4 in steps(folder, 1))
    asked = time.monotonic()
    os.kill(command.pid, signal.SIGTERM)
    if launcher != "torchrun":  # which hears only the first signal, and kills its ranks 30 s later
        signal_again(command.pid, folder)
        assert time.monotonic() - asked < 25  # ranks that one signal has asked are given up after 30 s
    assert command.wait() == (1 if launcher == "torchrun" else 143), command.said
    assert time.monotonic() - asked < 90
    assert left_over(folder) == []
    assert all(torch.equal(value, before[name]) for name, value in weights(folder).items())


def test_a_signal_during_evaluation_keeps_the_trained_epoch_and_evaluates_it_on_resume(begin, straight, tmp_path):
    folder = tmp_path / "run"
    command = begin("local", tmp_path, *FAST, "eval_seconds=5")
    wait_for(lambda: (folder / "evaluating").exists())
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 143
    assert "stopped by SIGTERM after step 4 (epoch 0, step 4 of it)" in command.said
    assert (folder / "log.txt").read_text() == ""
    assert begin("local", tmp_path, *FAST, "resume_from=auto").wait() == 0
    assert trace(folder) == trace(straight)
    assert (folder / "log.txt").read_text() == (straight / "log.txt").read_text()


# --- failures: case A13


@pytest.mark.parametrize("launcher", ["local", "torchrun", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_nan_on_one_rank_ends_the_run_before_the_step_and_names_rank_step_and_lr(begin, straight, tmp_path, launcher):
    folder = tmp_path / "run"
    started = time.monotonic()
    command = begin(launcher, tmp_path, *FAST, "fault=1:6:nan")
    status = command.wait()
    assert status == (1 if launcher == "torchrun" else 6), command.said
    assert time.monotonic() - started < 90
    errors = [line for line in command.said.splitlines() if line.startswith(("error:", "rank "))]
    assert "rank 1 of 2: the loss is nan at step 6 (epoch 1), lr 1e-06" in errors[0]
    assert read_checkpoint(folder / "last.ckpt")["tinyexp"]["step"] == 4
    assert all(value.isfinite().all() for value in weights(folder).values())
    assert steps(folder) == steps(folder, 1) == list(range(6))
    assert left_over(folder) == []


def test_a_gradient_that_is_not_finite_is_named_before_it_reaches_a_weight(begin, tmp_path):
    command = begin("local", tmp_path, *FAST, "accelerator_cfg.accelerator=tp", "fault=1:2:nan_gradient")
    assert command.wait() == 6
    assert "the gradient of head.weight is not finite at step 2 (epoch 0)" in command.said


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("ray", marks=pytest.mark.ray)])
def test_an_image_that_only_rank_1_reads_is_named_with_its_rank_and_path(begin, toy_set, tmp_path, launcher):
    broken = tmp_path / "data"
    shutil.copytree(toy_set, broken)
    command = begin(launcher, tmp_path, *FAST, f'dataloader_cfg.data_root="{broken}"', "fault=1:2:break_images")
    assert command.wait() == (1 if launcher == "torchrun" else 3), command.said
    errors = [line for line in command.said.splitlines() if line.startswith(("error:", "rank "))]
    assert "rank 1 of 2: " in errors[0]
    assert "/data-of-rank-1/" in errors[0]
    assert left_over(tmp_path / "run") == []


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_validation_folder_that_only_rank_0_can_open_is_named(begin, toy_set, tmp_path, launcher):
    command = begin(launcher, tmp_path, *FAST, "fault=1:-1:lose_validation")
    assert command.wait() == (1 if launcher == "torchrun" else 3), command.said
    errors = [line for line in command.said.splitlines() if line.startswith(("error:", "rank "))]
    assert "rank 1 of 2: " in errors[0]
    assert "data-of-rank-1" in errors[0]


def test_ranks_that_diverge_in_silence_are_stopped_and_named(begin, tmp_path):
    command = begin("local", tmp_path, *FAST, "accelerator_cfg.check_every=1", "fault=1:5:diverge")
    assert command.wait() == 6
    assert "ranks hold different values at step 6: head.weight of rank 1 is not that of the other ranks" in command.said
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["tinyexp"]["step"] == 4


RESTARTED = {
    "local": {"arguments": ["max_restarts=1"]},
    "torchrun": {"torchrun": (*TORCHRUN, "--max-restarts=1")},
    "ray": {"arguments": ["max_restarts=1"]},
}


@pytest.mark.parametrize(
    ("launcher", "fault"),
    [
        ("local", "1:6:kill"),
        ("local", "0:1:kill"),  # before anything is saved
        ("local", "1:7:raise"),
        ("torchrun", "1:6:kill"),
        pytest.param("ray", "1:6:kill", marks=pytest.mark.ray),
    ],
)
def test_a_lost_rank_costs_the_steps_since_the_last_save_and_nothing_else(begin, straight, tmp_path, launcher, fault):
    options = dict(RESTARTED[launcher])
    command = begin(launcher, tmp_path, *FAST, f"fault={fault}", *options.pop("arguments", []), **options)
    assert command.wait() == 0, command.said
    folder = tmp_path / "run"
    by_step = {line["step"]: line for line in trace(folder)}
    assert [by_step[step] for step in range(8)] == trace(straight)
    assert (folder / "log.txt").read_text() == (straight / "log.txt").read_text()
    assert same_weights(folder, straight)
    assert left_over(folder) == []


@pytest.mark.parametrize(
    "settings", [FAST, ["ray_cfg.ray_num_worker=4", "accelerator_cfg.tp_size=2", "accelerator_cfg.activations=replicated"]]
)
def test_a_hang_ends_within_the_timeout_and_names_the_rank(begin, tmp_path, settings):
    command = begin("local", tmp_path, *settings, "accelerator_cfg.timeout_s=10", "fault=1:2:hang")
    wait_for(lambda: len(steps(tmp_path / "run")) >= 2)
    started = time.monotonic()
    assert command.wait() == 7
    assert time.monotonic() - started < 90
    assert re.search(r"rank 1 of \d hangs: it did not come", command.said)
    assert left_over(tmp_path / "run") == []


def test_a_process_that_hangs_alone_ends_with_its_stack(begin, tmp_path):
    command = begin("local", tmp_path, "ray_cfg.ray_num_worker=1", "accelerator_cfg.timeout_s=2", "fault=0:2:hang")
    started = time.monotonic()
    assert command.wait() == 1
    assert time.monotonic() - started < 30
    assert "Timeout (0:00:04)!" in command.said
    assert "in hang" in command.said


# --- files: case A11


def test_a_file_size_limit_below_one_checkpoint_ends_the_run_and_leaves_the_earlier_ones(begin, toy_set, tmp_path):
    folder = tmp_path / "run"
    assert begin("local", tmp_path, *FAST, "max_train_steps=4").wait() == 0
    before = weights(folder)
    program = f'ulimit -f 1000; exec "{sys.executable}" -m tests.helpers.traced "$@"'
    arguments = [f'output_root="{tmp_path}"', f'dataloader_cfg.data_root="{toy_set}"', *FAST, "resume_from=auto"]
    done = subprocess.run(["bash", "-c", program, "run", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert f"{folder}/last.ckpt: File too large; earlier checkpoints are untouched" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.glob("*.part")] == []
    assert all(torch.equal(value, before[name]) for name, value in weights(folder).items())


def test_a_cut_checkpoint_gives_way_to_the_one_before_and_is_refused_by_name(begin, straight, tmp_path):
    folder = tmp_path / "run"
    assert begin("local", tmp_path, *FAST).wait() == 0
    data = (folder / "last.ckpt").read_bytes()
    (folder / "last.ckpt").write_bytes(data[: len(data) // 2])
    named = begin("local", tmp_path, *FAST, f'resume_from="{folder}/last.ckpt"')
    assert named.wait() == 4
    assert f"checkpoint {folder}/last.ckpt is incomplete or corrupt" in named.said
    assert "Traceback" not in named.said
    found = begin("local", tmp_path, *FAST, "resume_from=auto")
    assert found.wait() == 0
    assert "last.ckpt is incomplete or corrupt" in found.said
    assert f"resumed from {folder}/previous.ckpt at epoch 0, step 4 of it" in found.said
    assert same_weights(folder, straight)


def test_every_kill_during_a_save_can_be_resumed(begin, tmp_path):
    folder = tmp_path / "run"
    for trial in range(10):
        (folder / "trace-0.jsonl").unlink(missing_ok=True)
        command = begin("local", tmp_path, *FAST, "checkpoint_cfg.save_every_steps=1", "step_seconds=0.02", "resume_from=auto")
        wait_for(lambda: len(steps(folder)) >= 2)
        time.sleep(0.013 * trial)
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        assert left_over(folder) == []
        path = newest_good(folder, CheckpointCfg())
        if path is not None and read_checkpoint(path)["tinyexp"]["step"] >= 6:
            shutil.rmtree(folder)
    assert begin("local", tmp_path, *FAST, "resume_from=auto").wait() == 0


# --- two runs


def test_a_second_run_in_one_folder_is_refused_until_the_first_is_dead(begin, tmp_path):
    folder = tmp_path / "run"
    first = begin("local", tmp_path, *FAST, "fault=0:1:hang")
    wait_for(lambda: len(steps(folder)) >= 1)
    second = begin("local", tmp_path, *FAST)
    assert second.wait() == 5
    assert f"belongs to a run that is still going: pid {first.pid} on " in second.said
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert left_over(folder) == []
    assert begin("local", tmp_path, *FAST, "resume_from=auto").wait() == 0


def test_a_new_run_in_the_folder_of_an_old_one_moves_its_files_aside(begin, tmp_path):
    for _ in range(2):
        assert begin("local", tmp_path, *FAST, "max_train_steps=2").wait() == 0
    aside = tmp_path / "run" / "earlier-1"
    assert {path.name for path in aside.iterdir()} >= {"last.ckpt", "best.ckpt", "log.txt", "summary.json"}
    assert "an earlier run" in "".join(path.read_text() for path in tmp_path.glob("output-*"))


def test_a_run_writes_below_spaces_accents_and_long_names(begin, tmp_path):
    root = tmp_path / "été d'une (longue) nuit" / ("x" * 120) / ("y" * 120)
    assert begin("local", root, *FAST, "max_train_steps=1").wait() == 0
    assert read_checkpoint(root / "run" / "last.ckpt")["tinyexp"]["step"] == 1
