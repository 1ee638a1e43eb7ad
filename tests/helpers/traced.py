"""The shipped experiment in the small, which notes every step and can be made to fail: `python -m tests.helpers.traced …`"""

import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor

from tinyexp.data.batches import PaddedBatches
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.examples import vit_evaluation, vit_tp_exp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.entry import run_command, store_and_run_exp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.launch.worker import write_whole_lines
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.observability.rank_log import log_to_console
from tinyexp.observability.tensorboard_log import TensorboardCfg
from tinyexp.process import Environment
from tinyexp.signals import StopRequest
from tinyexp.training import epoch as training_loop
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.state import TrainState


@dataclass
class TracedExp(VitTpExp):
    """A two-block DeiT on 64 images, three epochs of four steps of 16 images, one of them warm-up, with drop-path and mixup."""

    fault: str = ""  # "rank:step:action": what that rank does before that step of the run, in the first attempt
    step_seconds: float = 0.0  # added to every step but the first, until a signal asks the run to stop
    eval_seconds: float = 0.0  # likewise to every evaluation batch, whose first one leaves a file `evaluating`
    launcher: str = "local"
    write_report: bool = False  # takes a second
    exp_name: str = "run"
    epochs: int = 3
    ray_cfg: RayCfg = field(default_factory=lambda: RayCfg(ray_num_worker=2, ray_num_gpus_per_worker=0.0))
    module_cfg: ModuleCfg = field(
        default_factory=lambda: ModuleCfg(
            patch_size=16, embed_dim=96, depth=2, num_heads=6, img_size=48, num_classes=4, drop_path_rate=0.1
        )
    )
    dataloader_cfg: DataLoaderCfg = field(
        default_factory=lambda: DataLoaderCfg(
            input_size=48, train_batch_size_per_device=8, val_batch_size_per_device=8, num_workers=0
        )
    )
    tensorboard_cfg: TensorboardCfg = field(default_factory=lambda: TensorboardCfg(enable_tensorboard=False))  # imports for 0.3 s
    lr_scheduler_cfg: LrSchedulerCfg = field(default_factory=lambda: LrSchedulerCfg(warmup_epochs=1))

    def run(self) -> Any:
        world = Environment.read().world
        torch.set_num_threads(1)
        self.run_folder.mkdir(parents=True, exist_ok=True)
        (self.run_folder / f"pid-{os.getpid()}").touch()
        original = training_loop.train_step

        def traced(state: TrainState, images: Tensor, targets: Tensor, **options: Any) -> float:
            step = state.step
            pause(self.step_seconds if step else 0.0)
            fail = self.action(world.rank, step)
            loss = original(state, images, targets, **(options | fail(state, options)))
            line = {"epoch": state.epoch, "step": step, "lr": state.lr, "loss": loss, "images": fingerprint(images, targets)}
            with open(self.run_folder / f"trace-{world.rank}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            return loss

        if self.fault == f"{world.rank}:-1:kill" and Environment.read().attempt == 0:
            kill()
        if self.fault == f"{world.rank}:-1:lose_validation":
            self.dataloader_cfg.data_root = str(self.own_data(with_validation=False))
        if self.fault == f"{world.rank}:2:break_images":
            self.dataloader_cfg.data_root = str(self.own_data(with_validation=True))
        with (
            mock.patch.object(vit_evaluation, "PaddedBatches", self.slow_batches),
            mock.patch.object(training_loop, "train_step", traced),
            mock.patch.object(vit_tp_exp, "draw_curves", draw_nothing),  # takes a second
        ):
            return super().run()

    def own_data(self, *, with_validation: bool) -> Path:
        """A copy of the data set that only this rank sees."""
        folder = Path(self.output_root, f"data-of-rank-{Environment.read().world.rank}")
        shutil.copytree(self.dataloader_cfg.data_root, folder)
        if not with_validation:
            shutil.rmtree(folder / "val")
        return folder

    def slow_batches(self, loader: Any) -> Any:
        folder, seconds = self.run_folder, self.eval_seconds

        class Slow(PaddedBatches):
            def __iter__(self) -> Iterator[Any]:
                for batch in super().__iter__():
                    if seconds:
                        (folder / "evaluating").touch()
                        pause(seconds)
                    yield batch

        return Slow(loader)

    def break_images(self, *_: Any) -> dict[str, Any]:
        for path in Path(self.dataloader_cfg.data_root, "train").glob("*/*"):
            path.write_bytes(b"")
        return {}

    def action(self, rank: int, step: int) -> Callable[[TrainState, dict[str, Any]], dict[str, Any]]:
        at_rank, at_step, name = (self.fault or "-1:-1:nothing").split(":")
        if (rank, step) == (int(at_rank), int(at_step)) and Environment.read().attempt == 0:
            return self.break_images if name == "break_images" else ACTIONS[name]
        return lambda state, options: {}


def pause(seconds: float) -> None:
    """Sleep, until a signal asks this rank to stop. A plain sleep would go on after the signal."""
    stop = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)  # the StopRequest of the run
    assert isinstance(stop, StopRequest) or not seconds
    deadline = time.monotonic() + seconds
    while stop and not stop.count and time.monotonic() < deadline:
        time.sleep(0.01)


def draw_nothing(rows: Any, path: Path, *, title: str) -> Path:
    path.write_text("not drawn")
    return path


def kill(*_: Any) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process is gone")


def fail(*_: Any) -> dict[str, Any]:
    raise ValueError("a fault of the test")


def nan_loss(_: TrainState, options: dict[str, Any]) -> dict[str, Any]:
    return {"criterion": lambda logits, targets: options["criterion"](logits, targets) * torch.nan}


def nan_gradient(state: TrainState, _: dict[str, Any]) -> dict[str, Any]:
    parameter = state.accelerator.parameters.by_name["head.weight"]
    handle = parameter.register_hook(lambda gradient: (handle.remove(), gradient * torch.nan)[1])
    return {}


def diverge(state: TrainState, _: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        state.accelerator.parameters.by_name["head.weight"][0, 0] += 1e-3
    return {}


def hang(*_: Any) -> dict[str, Any]:
    time.sleep(3600)
    return {}


def stop_process(*_: Any) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSTOP)
    return {}


def warn(*_: Any) -> dict[str, Any]:
    logging.getLogger("tinyexp").warning("a warning of the test")
    return {}


def terminate(*_: Any) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


ACTIONS = {
    "kill": kill,
    "raise": fail,
    "nan": nan_loss,
    "nan_gradient": nan_gradient,
    "diverge": diverge,
    "hang": hang,
    "stop": stop_process,
    "sigterm": terminate,
    "warn": warn,
}


def fingerprint(*tensors: Tensor) -> str:
    """Of the mixed images and targets of a step: which they are, how they were augmented and mixed."""
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def trace(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The steps that a rank noted in a run folder, in the order in which it took them."""
    return [json.loads(line) for line in (folder / f"trace-{rank}.jsonl").read_text().splitlines()]


def run_here(root: Path, *arguments: str) -> int:
    """Run the experiment with a driver of its own; returns its status. Its ranks start from the modules that are loaded here."""
    return Begun(root, *arguments).wait()


class Begun:
    """A driver that was forked from this process, so that nothing is imported again."""

    def __init__(self, root: Path, *arguments: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.output = root / f"output-{time.monotonic_ns()}.txt"
        self.status: int | None = None  # of the driver, as a shell shows it; None while it runs
        self.pid = os.fork()
        if self.pid == 0:
            _drive(self.output, [f'output_root="{root}"', *arguments])

    def wait(self) -> int:
        """The status of the driver."""
        if self.status is None:
            self._take(os.waitpid(self.pid, 0)[1])
        assert self.status is not None
        return self.status

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._take(status)
        return self.status is not None

    def _take(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


def _drive(output: Path, arguments: list[str]) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        write_whole_lines()
        for handler in logging.getLogger().handlers[:]:
            logging.getLogger().removeHandler(handler)  # pytest's
        log_to_console()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["OMP_NUM_THREADS"] = "1"
        status = run_command(TracedExp, arguments)
    except SystemExit as left:
        status = int(left.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    store_and_run_exp(TracedExp)
