"""One file in the official DeiT layout, written from any mesh and read by timm, the official code, or any other mesh."""

import argparse
import contextlib
import os
import pathlib
import pickle
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyexp.errors import CheckpointError
from tinyexp.parallel.apply import load_whole
from tinyexp.training.state import TrainState

MOMENTS = ("exp_avg", "exp_avg_sq")
PLAIN_CLASSES = [argparse.Namespace, pathlib.PosixPath, pathlib.WindowsPath]  # of the `args` in official files


@dataclass
class CheckpointCfg:
    """Names of the files in the run folder."""

    last_ckpt_name: str = "last.ckpt"  # written after every epoch
    best_ckpt_name: str = "best.ckpt"  # written when top-1 improves

    def problems(self) -> list[str]:
        return [
            f"checkpoint_cfg.{name}={getattr(self, name)!r}: a plain file name is needed"
            for name in ("last_ckpt_name", "best_ckpt_name")
            if not getattr(self, name) or Path(getattr(self, name)).name != getattr(self, name)
        ]


@dataclass(frozen=True)
class OfficialLayout:
    """How a model's own parameter names and tensors become those of the official checkpoint, and back."""

    to_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    from_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def official_checkpoint(state: TrainState, layout: OfficialLayout, *, args: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the official code saves, as plain CPU tensors and plain Python values, and a `tinyexp` entry of ours.

    Every rank must call it: shards are gathered. `args` is a plain mapping, so that safe loading needs no class of ours.
    """
    accelerator = state.accelerator
    checkpoint: dict[str, Any] = {
        "model": layout.to_official(accelerator.whole_weights()),
        "optimizer": _official_optimizer(state, layout),
        "lr_scheduler": state.lr_scheduler.state_dict(),
        "epoch": state.epoch,
        "scaler": accelerator.scaler.state_dict(),
        "args": dict(args),
        "tinyexp": {"step": state.step, "max_accuracy": state.max_accuracy},
    }
    if state.ema is not None:
        average = accelerator.whole_weights() | accelerator.whole_like_weights(state.ema.average)
        checkpoint["model_ema"] = layout.to_official(average)
    return checkpoint


def save_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write the file whole or not at all: a temporary file in the same folder, synced, then renamed.

    One rank calls it. Raises: CheckpointError with the reason; an earlier file of this name is untouched then.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        with open(temporary, "xb") as file:
            torch.save(dict(checkpoint), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot save the checkpoint {path}: {error}; earlier checkpoints are untouched") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint file as plain values on the CPU. Only data is read: no class but those named here is ever built.

    Raises: CheckpointError that names the file and why it cannot be read.
    """
    path = Path(path).expanduser()
    try:
        with torch.serialization.safe_globals(PLAIN_CLASSES), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a foreign pickle, which is refused or read all the same
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path.absolute()} does not exist") from None
    except pickle.UnpicklingError as error:
        reason = str(error).split("WeightsUnpickler error:")[-1].strip().splitlines()[0]
        raise CheckpointError(f"checkpoint {path.absolute()} was refused, it holds more than plain data: {reason}") from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path.absolute()} is incomplete or corrupt: {str(error).splitlines()[0]}") from None
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"checkpoint {path.absolute()} holds a {type(checkpoint).__name__}; a dictionary is needed")
    return checkpoint


def resume(state: TrainState, checkpoint: Mapping[str, Any], layout: OfficialLayout, *, source: str) -> None:
    """Continue from a checkpoint written by any mesh: weights, optimizer, schedule, average, counters.

    Every rank must call it, after the optimizer is built. Raises: CheckpointError that names what does not fit.
    """
    try:
        load_whole(state.accelerator.model, layout.from_official(checkpoint["model"]))
        _load_optimizer(state, layout, checkpoint["optimizer"])
        if state.ema is not None and "model_ema" in checkpoint:
            state.ema.load(_local_parts(state, layout.from_official(checkpoint["model_ema"])))
        state.lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        state.accelerator.scaler.load_state_dict(checkpoint.get("scaler", {}) or state.accelerator.scaler.state_dict())
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {source} does not fit this run: {error}") from error
    own = checkpoint.get("tinyexp", {})
    state.epoch = checkpoint["epoch"] + 1
    state.step = own.get("step", 0)
    state.max_accuracy = own.get("max_accuracy", -1.0)


def _official_optimizer(state: TrainState, layout: OfficialLayout) -> dict[str, Any]:
    """The optimizer's state over whole tensors, numbered as the official one: group by group, each in the model's order."""
    names = _names_by_group(state)
    moments = {
        moment: layout.to_official(
            state.accelerator.whole_like_weights(
                {name: _state_of(state, name)[moment] for group in names for name in group if moment in _state_of(state, name)}
            )
        )
        for moment in MOMENTS
    }
    steps = {name: _state_of(state, name).get("step", torch.tensor(0.0)).cpu() for group in names for name in group}
    official_steps = layout.to_official({name: step.reshape(1) for name, step in steps.items()})
    groups, numbered = [], {}
    for group, own_names in zip(state.optimizer.param_groups, names, strict=True):
        official = list(layout.to_official({name: torch.empty(1) for name in own_names}))
        first = len(numbered)
        for index, name in enumerate(official, start=first):
            values = {moment: moments[moment][name] for moment in MOMENTS if name in moments[moment]}
            numbered[index] = {"step": official_steps[name][0], **values} if values else {}
        indices = list(range(first, len(numbered)))
        groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": indices})
    return {"state": {index: values for index, values in numbered.items() if values}, "param_groups": groups}


def _load_optimizer(state: TrainState, layout: OfficialLayout, saved: Mapping[str, Any]) -> None:
    for group, own_names, saved_group in zip(
        state.optimizer.param_groups, _names_by_group(state), saved["param_groups"], strict=True
    ):
        official = list(layout.to_official({name: torch.empty(1) for name in own_names}))
        if len(official) != len(saved_group["params"]):
            raise ValueError(f"an optimizer group has {len(saved_group['params'])} parameters, the model's has {len(official)}")
        group.update({key: value for key, value in saved_group.items() if key != "params"})
        slots = {
            name: saved["state"][index]
            for name, index in zip(official, saved_group["params"], strict=True)
            if index in saved["state"]
        }
        for moment in MOMENTS:
            parts = _local_parts(state, layout.from_official({name: slot[moment] for name, slot in slots.items()}))
            for name, part in parts.items():
                _state_of(state, name)[moment] = part.to(state.accelerator.device, copy=True)
        steps = layout.from_official({name: slot["step"].reshape(1).repeat(3) for name, slot in slots.items()})
        for name, step in steps.items():
            _state_of(state, name)["step"] = step[0].clone()


def _names_by_group(state: TrainState) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in state.accelerator.parameters.by_name.items()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in state.optimizer.param_groups]


def _state_of(state: TrainState, name: str) -> dict[str, Any]:
    return state.optimizer.state[state.accelerator.parameters.by_name[name]]


def _local_parts(state: TrainState, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parameters = state.accelerator.parameters
    for name, value in whole.items():
        if value.shape != parameters.whole_shape(name):
            raise ValueError(f"{name} is {tuple(value.shape)}, the model has {tuple(parameters.whole_shape(name))}")
    return {name: parameters.part(name, value) for name, value in whole.items()}
