"""The command as a user meets it: one message for a mistake, in seconds, with no process started and nothing left behind."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tinyexp.errors import WorkerFailed
from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment import entry
from tinyexp.experiment.base import TinyExp

SMOKE = [
    "dataloader_cfg.fake_data=true",
    "dataloader_cfg.input_size=32",
    "dataloader_cfg.train_batch_size_per_device=8",
    "dataloader_cfg.val_batch_size_per_device=8",
    "module_cfg.img_size=32",
    "module_cfg.num_classes=10",
    "epochs=1",
    "max_train_steps=4",
    "ray_cfg.ray_num_gpus_per_worker=0.0",
    "ray_cfg.ray_num_cpus_per_worker=2",
]
TINY = [*SMOKE, "module_cfg.model_name=deit_digits_patch8_32", "dataloader_cfg.num_workers=0", "write_report=false"]


def command(*arguments: str, folder: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinyexp.examples.vit_tp_exp", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_name_that_no_stream_has_bytes_for_ends_no_run_that_prints_it(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(entry, "run_command", lambda *_: print("caf\udce9.png", flush=True))
    with pytest.raises(SystemExit):
        entry.store_and_run_exp(VitTpExp, [])
    assert screen.buffer.getvalue() == b"caf\\udce9.png\n"


@pytest.mark.parametrize("mode", ["help", "plan"])
def test_a_page_that_nobody_reads_to_its_end_ends_in_silence(mode, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(os.open(tmp_path / "errors", os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115, as long as the child lives
        try:
            entry.store_and_run_exp(VitTpExp, [*TINY, f"mode={mode}", f'output_root="{tmp_path}"'])
        except SystemExit as left:
            os._exit(int(left.code or 0))
        finally:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    os.close(writer)
    assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (tmp_path / "errors").read_text()) == (141, "")


MISTAKES = {
    "unknown key": (["optimizer_cfg.lrr=1"], 2, ["optimizer_cfg.lrr: no such key", "nearest: optimizer_cfg.lr"]),
    "wrong type": (["epochs=many"], 2, ["epochs: got 'many', needs a whole number"]),
    "unknown mode": ([*TINY, "mode=trian"], 2, ["mode='trian'", "nearest: train"]),
    "unknown launcher": ([*TINY, "launcher=slurm"], 2, ["launcher='slurm': allowed are ray, local, mp\n"]),
    "no key": (["=3"], 2, ["'=3' has no key before its ="]),
    "a section without its page": (
        [*TINY, "help_section=optimizer_cfg"],
        2,
        ["help_section=optimizer_cfg: only mode=help shows"],
    ),
    "unknown progress": ([*TINY, "progress=fancy"], 2, ["progress='fancy': allowed are auto, plain"]),
    "restarts below 0": (
        [*TINY, "max_restarts=-1"],
        2,
        ["max_restarts=-1: a number from 0 to 1,000,000,000 is needed; 0 never starts again"],
    ),
    "restarts of what torchrun starts": ([*TINY, "launcher=mp", "max_restarts=2"], 2, ["torchrun --max-restarts=2"]),
    "unknown accelerator": ([*TINY, "accelerator_cfg.accelerator=fsdp"], 2, ["accelerator='fsdp'", "tp, ddp, cpu"]),
    "unknown model": ([*TINY, "module_cfg.model_name=vit_huge"], 2, ["model_name='vit_huge'", "deit_small_patch16_224"]),
    "missing data": ([*SMOKE, "dataloader_cfg.fake_data=false", "dataloader_cfg.data_root=./nowhere"], 2, ["/nowhere/train"]),
    "processes that do not divide": ([*TINY, "accelerator_cfg.tp_size=3"], 2, ["tp_size=3 does not divide the 2 processes"]),
    "overlap of nothing": (
        [*TINY, "accelerator_cfg.tp_size=1", "accelerator_cfg.overlap_chunks=4"],
        2,
        ["accelerator_cfg.overlap_chunks=4", "dp=2 tp=1"],
    ),
    "dropout over shards": (
        [*SMOKE, "module_cfg.drop_rate=0.1"],
        2,
        ["module_cfg.drop_rate=0.1 needs accelerator_cfg.tp_size=1, this run has 2"],
    ),
    "no weights to evaluate": ([*TINY, "mode=eval"], 2, ["mode=eval has no weights", "module_cfg.pretrained_from"]),
    "missing weights": ([*TINY, "mode=eval", "module_cfg.pretrained_from=a.pth"], 2, ["no such file"]),
    "weights from a URL of another kind": (
        [*TINY, "module_cfg.pretrained_from=ftp://me:hunter2@h/a.pth"],
        2,
        ["module_cfg.pretrained_from=ftp://me:***@h/a.pth: only a path or an https URL is read"],
    ),
    "a URL to resume from": (
        [*TINY, 'resume_from="https://h/a.ckpt?token=hunter2"'],
        2,
        ["resume_from=https://h/a.ckpt?token=***: a run continues from a file; fetch it and give its path"],
    ),
    "a URL that wants quotes": (
        [*TINY, "module_cfg.pretrained_from=https://h/a.pth?token=hunter2"],
        2,
        ["cannot read 'https://h/a.pth?token=***'", """'module_cfg.pretrained_from="https://h/a.pth?token=***"'"""],
    ),
    "weights called auto": ([*TINY, "module_cfg.pretrained_from=auto"], 2, ["module_cfg.pretrained_from=auto: no such file"]),
    "odd batch under mixup": ([*TINY, "dataloader_cfg.train_batch_size_per_device=7"], 2, ["=7 is odd"]),
    "sizes that differ": ([*TINY, "module_cfg.img_size=64"], 2, ["module_cfg.img_size=64 and dataloader_cfg.input_size=32"]),
    "no GPUs": (
        [*TINY, "accelerator_cfg.accelerator=ddp", "ray_cfg.ray_num_gpus_per_worker=1.0", "ray_cfg.ray_num_worker=8"],
        5,
        ["8 workers", "8 GPUs", "ray_cfg.ray_num_gpus_per_worker=0.0"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_message_before_any_process_starts(name, tmp_path, monkeypatch, capsys):
    arguments, status, parts = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for launcher in ("run_ray", "run_local", "run_external"):
        monkeypatch.setattr(entry, launcher, lambda *_, **__: pytest.fail("a process was started"))
    assert entry.run_command(VitTpExp, arguments) == status
    printed = capsys.readouterr()
    for part in parts:
        assert part in printed.err, printed.err
    assert printed.err.count("error: ") == 1
    assert "hunter2" not in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_words_that_are_far_from_all_that_is_allowed_propose_nothing(capsys):
    for arguments in (["mode=help", "help_section=nosuch"], [*TINY, "launcher=slurm"], [*TINY, "accelerator_cfg.device=quantum"]):
        assert entry.run_command(VitTpExp, arguments) == 2
        assert "nearest" not in capsys.readouterr().err


@dataclass
class BrokenExp(TinyExp):
    """Raises what nobody expects."""

    launcher: str = "local"

    def run(self) -> None:
        raise ValueError("a fault of the test")


def test_one_process_that_breaks_ends_as_a_rank_of_several_does(tmp_path, capsys):
    assert entry.run_command(BrokenExp, [f"output_root={tmp_path}"]) == WorkerFailed.exit_status == 7
    error = capsys.readouterr().err
    assert error.startswith("error: ValueError: a fault of the test\n\nTraceback (most recent call last):\n")
    assert error.endswith("ValueError: a fault of the test\n")


OF_RANK_3 = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.mark.parametrize(
    ("variables", "speaks"),
    [
        ({}, True),  # by hand: each rank has a command, and mistakes, of its own
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, False),
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, True),  # the only one of its machine
    ],
)
def test_a_mistake_is_told_once_by_each_command(variables, speaks, monkeypatch, capsys):
    for name, value in (OF_RANK_3 | variables).items():
        monkeypatch.setenv(name, value)
    assert entry.run_command(VitTpExp, ["epochs=many"]) == 2
    assert ("epochs: got 'many', needs a whole number" in capsys.readouterr().err) is speaks


def test_the_demo_without_its_digits_says_how_to_make_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert entry.run_command(DigitsDemo, []) == 2
    assert "python -m tinyexp.data.digits ./data/digits/ writes the digits" in capsys.readouterr().err


def test_the_whole_command_ends_with_status_and_message_and_without_a_traceback(tmp_path):
    start = time.monotonic()
    done = command("optimizer_cfg.lrr=1", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the command line does not fit the experiment:\n  optimizer_cfg.lrr: no such key")
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 60  # 5 s on a quiet machine, most of it importing torch


def test_every_problem_of_a_command_is_named_at_once(capsys):
    arguments = [*TINY, "epochs=0", "loss_cfg.smoothing=3", "accelerator_cfg.activations=mixed"]
    assert entry.run_command(VitTpExp, arguments) == 2
    message = capsys.readouterr().err
    for part in ("3 problems in the configuration:", "epochs=0", "loss_cfg.smoothing=3", "activations='mixed'"):
        assert part in message


def test_the_full_recipe_without_imagenet_names_folder_layout_and_key(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMAGENET_HOME", raising=False)
    assert entry.run_command(VitTpExp, ["ray_cfg.ray_num_gpus_per_worker=0.0"]) == 2
    message = capsys.readouterr().err
    for part in (f"{tmp_path}/data/imagenet/train", "{train,val}/<class>/*", "dataloader_cfg.data_root", "IMAGENET_HOME"):
        assert part in message


def test_help_prints_every_key_and_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert entry.run_command(VitTpExp, ["mode=help", "epochs=7"]) == 0
    page = capsys.readouterr().out
    for part in ("accelerator_cfg.activations", "epochs = 7  (default 300)", "DeiT main.py --weight-decay"):
        assert part in page
    assert list(tmp_path.iterdir()) == []


def losses(folder: Path) -> list[str]:
    return [line.split("time:")[0] for line in folder.read_text().splitlines() if line.startswith(("Epoch", "* Acc@1"))]


def torchrun(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*launcher, "-m", "tinyexp.examples.vit_tp_exp", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.ray
def test_ray_local_and_torchrun_give_the_same_losses_in_exactly_four_steps(tmp_path, toy_set):  # case A14
    folder = tmp_path / "a folder"
    shutil.copytree(toy_set, folder / "data")
    one_thread = {"OMP_NUM_THREADS": "1"}
    images = ["dataloader_cfg.fake_data=false", "dataloader_cfg.data_root=./data", "module_cfg.num_classes=4"]
    settings = [*TINY, *images, "dataloader_cfg.input_size=48", "module_cfg.img_size=48"]
    names = {name: f"{name}, é=1 (2)" for name in ("local", "ray", "torchrun")}  # case A04: quotes survive every launcher
    roots = {name: f'output_root="./{names[name]}"' for name in names}
    runs = {
        "ray": command(*settings, "launcher=ray", roots["ray"], folder=folder, environment=one_thread),
        "local": command(*settings, "launcher=local", roots["local"], folder=folder, environment=one_thread),
        "torchrun": torchrun(*settings, roots["torchrun"], folder=folder),
    }
    rows = {}
    for name, done in runs.items():
        assert done.returncode == 0, (name, done.stderr)
        assert "4 steps" in done.stdout
        rows[name] = (folder / names[name] / "vit_tp_exp" / "log.txt").read_text()
        assert (folder / names[name] / "vit_tp_exp" / "last.ckpt").exists()
        steps = [line for line in done.stdout.splitlines() if line.startswith("Epoch: [0]") and "eta" in line]
        assert steps[-1].startswith("Epoch: [0]  [3/4]")
    assert rows["ray"] == rows["local"] == rows["torchrun"]
    assert sorted(path.name for path in folder.iterdir()) == ["data", *names.values()]
    assert "WARNING: ray_cfg asks for" in runs["ray"].stderr or len(os.sched_getaffinity(0)) >= 4


def test_a_run_that_has_more_steps_than_its_limit_takes_none(tmp_path, capsys):
    alone = [*TINY, "launcher=local", "ray_cfg.ray_num_worker=1", f"output_root={tmp_path}"]
    assert entry.run_command(VitTpExp, alone) == 0
    checkpoint = tmp_path / "vit_tp_exp" / "last.ckpt"
    again = [*alone, f'resume_from="{checkpoint}"', "epochs=3", "max_train_steps=2"]
    capsys.readouterr()
    assert entry.run_command(VitTpExp, again) == 0
    printed = capsys.readouterr().out
    assert "at epoch 0, step 4 of it, 4 steps in all" in printed
    assert "Epoch: [" not in printed


def test_bench_runs_in_float64(tmp_path, capsys):
    steps = ["bench_cfg.warmup_steps=0", "bench_cfg.measure_steps=1", "accelerator_cfg.precision=fp64"]
    alone = [*TINY, "mode=bench", "launcher=local", "ray_cfg.ray_num_worker=1", f"output_root={tmp_path}"]
    assert entry.run_command(VitTpExp, [*alone, *steps]) == 0
    assert "effective_global_img/s=" in capsys.readouterr().out


def test_bench_measures_tp_and_ddp_at_both_equal_batches_and_counts_each_image_once(tmp_path):  # case A17
    done = command(
        *TINY,
        "mode=bench",
        "launcher=local",
        "accelerator_cfg.activations=replicated",
        "bench_cfg.warmup_steps=1",
        "bench_cfg.measure_steps=2",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "bench[tp dp=1 tp=2 replicated] batch/rank=8 step=" in done.stdout
    assert "bench[ddp dp=2 tp=1] batch/rank=8 step=" in done.stdout
    assert "bench[ddp dp=2 tp=1] batch/rank=4 step=" in done.stdout
    runs = json.loads((tmp_path / "output/vit_tp_exp/bench.json").read_text())["runs"]
    assert [run["global_batch"] for run in runs] == [8, 16, 8]
    for run in runs:
        for timing in (run["training_step"], run["forward_backward"]):
            assert timing["images_per_s"] * timing["timed_s"] == pytest.approx(2 * run["global_batch"], rel=1e-9)
        assert run["held_bytes"]["activations"] > 0
        assert run["traffic"]


def test_plan_starts_nothing_and_needs_no_device(capsys):
    assert entry.run_command(VitTpExp, ["mode=plan", "ray_cfg.ray_num_worker=4"]) == 0
    page = capsys.readouterr().out
    for part in ("tp dp=1 tp=4 sharded, 4 processes", "128 of 512 are zeros", "all-gather", "a model of 22,050,664"):
        assert part in page
    assert not torch.distributed.is_initialized()


def test_a_launcher_that_starts_processes_is_refused_inside_torchrun(monkeypatch, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}.items():
        monkeypatch.setenv(name, value)
    assert entry.run_command(VitTpExp, [*TINY, "launcher=ray"]) == 2
    assert "launcher=ray would start processes, but WORLD_SIZE=2" in capsys.readouterr().err


def test_an_experiment_in_a_script_of_the_user_runs_on_two_processes(tmp_path):
    (tmp_path / "my_exp.py").write_text(
        "from dataclasses import dataclass\n"
        "from tinyexp import TinyExp, store_and_run_exp\n"
        "from tinyexp.process import Environment\n"
        "@dataclass\n"
        "class MyExp(TinyExp):\n"
        '    """Mine."""\n'
        "    launcher: str = 'local'\n"
        "    word: str = 'none'  # a word\n"
        "    def run(self):\n"
        "        return self.word + str(Environment.read().world.size)\n"
        "    def report(self, result):\n"
        "        print('said', result, self.exp_name)\n"
        "if __name__ == '__main__':\n"
        "    store_and_run_exp(MyExp)\n"
    )
    done = subprocess.run(
        [sys.executable, "my_exp.py", 'word="a=b"', "ray_cfg.ray_num_worker=2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "said a=b2 my_exp"
