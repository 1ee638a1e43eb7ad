"""Continue a run from a checkpoint, which any mesh may have written, and find the one to continue from."""

import fnmatch
import glob
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyexp.errors import CheckpointError
from tinyexp.limits import MOST, Range, name_problem, range_problems
from tinyexp.parallel.apply import load_whole
from tinyexp.process import RandomState
from tinyexp.training.changed_keys import changed_keys
from tinyexp.training.checkpoint_file import damaged_record, peek
from tinyexp.training.meters import Meter
from tinyexp.training.same_set import changed_images, require_same_classes
from tinyexp.training.snapshot import AVERAGE, MOMENTS, OfficialLayout, versions
from tinyexp.training.state import TrainState

AUTO = "auto"  # as resume_from: the newest good checkpoint of the run folder
RANGES = {
    "save_every_steps": Range(0, MOST, "0 is off"),
    "keep_step_ckpts": Range(1, MOST),
    "allow_save_failures": Range(0, MOST),
}
STEP_FILES = "step-*.ckpt"
SET_ASIDE = ".corrupt"  # ends the name of a file that turned out to be damaged
OTHER_FILES = (".txt", ".json", ".jsonl", ".png", ".html", SET_ASIDE)  # endings of what a run folder holds beside checkpoints

log = logging.getLogger("tinyexp")


@dataclass
class CheckpointCfg:
    """Which checkpoints a run keeps in its folder. Each is one file in the official layout."""

    last_ckpt_name: str = "last.ckpt"  # written after every epoch, when a signal stops the run, and every save_every_steps
    previous_ckpt_name: str = "previous.ckpt"  # what last_ckpt_name was before; what is left if that file gets damaged
    best_ckpt_name: str = "best.ckpt"  # written when top-1 improves
    save_every_steps: int = 0  # optimizer steps between two saves within an epoch, each kept as step-<N>.ckpt too; 0: off
    keep_step_ckpts: int = 2  # newest step-<N>.ckpt files that stay
    allow_save_failures: int = 2  # failed saves in a row that a run survives; the next one ends it

    def problems(self) -> list[str]:
        names = ("last_ckpt_name", "previous_ckpt_name", "best_ckpt_name")
        problems = (name_problem(f"checkpoint_cfg.{name}", getattr(self, name)) for name in names)
        found = [problem for problem in problems if problem]
        found += [
            f"checkpoint_cfg.{name}={getattr(self, name)}: a run writes other files of that kind; use a name such as {default}"
            for name, default in zip(names, ("last.ckpt", "previous.ckpt", "best.ckpt"), strict=True)
            if getattr(self, name).endswith(OTHER_FILES) or fnmatch.fnmatch(getattr(self, name), STEP_FILES)
        ]
        if len({getattr(self, name) for name in names}) < len(names):
            found.append(f"checkpoint_cfg: {', '.join(names)} must be three different names")
        return found + list(range_problems("checkpoint_cfg.", self, RANGES))

    def patterns(self) -> list[str]:
        """Of the names of a run's checkpoints."""
        return [*map(glob.escape, (self.last_ckpt_name, self.previous_ckpt_name, self.best_ckpt_name)), STEP_FILES]


def step_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.ckpt"


def step_files(folder: Path) -> list[Path]:
    """The files that `step_file` names, oldest first."""
    return sorted(folder.glob(STEP_FILES))


def checkpoints_in(folder: Path, cfg: CheckpointCfg) -> set[Path]:
    """The files of a run folder that have the name of a checkpoint."""
    return {path for pattern in cfg.patterns() for path in folder.glob(pattern)}


def lies_in(folder: Path, source: str) -> bool:
    """Whether a path is that of a file of a run folder, whatever links and `..` lead there."""
    path = Path(source).expanduser()
    return bool(source) and folder.resolve() in (path.parent.resolve(), path.resolve().parent)


def newest_good(folder: Path, cfg: CheckpointCfg) -> Path | None:
    """The checkpoint of the run folder with the most steps whose bytes are whole; None where the folder has none at all.

    Damaged ones are named in a warning and renamed, so that they are neither used nor lost.
    Raises: CheckpointError where all of them are damaged: a run must not start over in silence.
    """
    files = checkpoints_in(folder, cfg)
    readable: list[tuple[int, bool, Path]] = []
    for path in files:
        try:
            readable.append((int(peek(path).get("tinyexp", {}).get("step", 0)), path.name == cfg.last_ckpt_name, path))
        except (CheckpointError, AttributeError, TypeError, ValueError) as error:
            _set_aside(path, str(error))
    for _, _, path in sorted(readable, reverse=True):
        damage = damaged_record(path)
        if not damage:
            return path
        _set_aside(path, f"{path} is incomplete or corrupt: {damage}")
    if files:
        raise CheckpointError(
            f"none of the {len(files)} checkpoints of {folder} can be read; they are set aside as *{SET_ASIDE}. "
            "resume_from=<path> takes another one, resume_from=null starts over"
        )
    return None


def resume(
    state: TrainState,
    checkpoint: Mapping[str, Any],
    layout: OfficialLayout,
    *,
    source: str,
    args: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Continue from a checkpoint written by any mesh: weights, optimizer, schedule, average, counters, random states.

    Every rank must call it, after the optimizer is built. `args` and `facts` are those that this run saves in its own
    checkpoints.
    Returns: what the checkpoint lacks, or what differs from the run that wrote it, for the user to read.
    Raises: CheckpointError that names what does not fit, DataError where the data set has other classes.
    """
    if "optimizer" not in checkpoint:
        raise CheckpointError(
            f"{source} holds weights alone, no run to continue; start one with module_cfg.pretrained_from={source}"
        )
    notes = changed_keys(checkpoint.get("args", {}), args, source=source) if args else []
    try:
        load_whole(state.accelerator.model, layout.from_official(checkpoint["model"]))
        _load_optimizer(state, layout, checkpoint["optimizer"])
        if state.ema is not None and checkpoint.get(AVERAGE) is not None:
            state.ema.load(_local_parts(state, layout.from_official(checkpoint[AVERAGE])))
        elif state.ema is not None:
            state.ema.load(state.accelerator.parameters.by_name)
            notes.append("it has no averaged weights: the average starts at the weights")
        state.lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        state.accelerator.scaler.load_state_dict(checkpoint.get("scaler", {}) or state.accelerator.scaler.state_dict())
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {source} does not fit this run: {error}") from error
    own = checkpoint.get("tinyexp")
    if own is None or "replicas" not in own:
        state.epoch = checkpoint["epoch"] + 1
        steps = [int(slot["step"]) for slot in checkpoint["optimizer"]["state"].values()]
        state.step = max(steps, default=0)
        return [*notes, "it has no random states and no best score: both start anew"]
    return notes + _take_position(state, own, source, facts or {})


def _take_position(state: TrainState, own: Mapping[str, Any], source: str, facts: Mapping[str, Any]) -> list[str]:
    """Counters, meters and random state from our own entry. Returns notes."""
    advice = "use the same set, or start a new run with module_cfg.pretrained_from"
    notes = require_same_classes(own.get("classes", ()), facts.get("classes", ()), source=source, advice=advice)
    for name in ("step", "epoch", "epoch_step", "epoch_is_trained", "train_stats", "max_accuracy", "last_accuracy"):
        setattr(state, name, own[name])
    other_images, moved = changed_images(own.get("images", {}), facts.get("images", {}))
    for warning in other_images if state.accelerator.is_main else ():
        log.warning("%s: %s", source, warning)
    notes += moved + _differences(own, facts)
    global_batch, before = facts.get("global_batch"), own.get("global_batch")
    if state.epoch_step and not state.epoch_is_trained and global_batch and before:
        images = state.epoch_step * before
        if images % global_batch:
            raise CheckpointError(
                f"checkpoint {source} was saved after {images} images of an epoch, which is no whole number of this run's global "
                f"batches of {global_batch}; keep the global batch of {before}, or resume from the end of an epoch"
            )
        state.epoch_step = images // global_batch
    _take_replica(state, own["replicas"], notes)
    return notes


def _take_replica(state: TrainState, replicas: list[Mapping[str, Any]], notes: list[str]) -> None:
    replica = state.accelerator.replica
    if replica.rank < len(replicas):
        RandomState.from_plain(replicas[replica.rank]["random"]).restore()
    if replica.size == len(replicas):
        state.meters = {name: Meter.from_plain(plain) for name, plain in replicas[replica.rank]["meters"].items()}
        return
    notes.append(
        f"{len(replicas)} replicas wrote it, this run has {replica.size}: each draws from a stream of its own from here on"
    )
    state.meters = {name: Meter() for name in replicas[0]["meters"]}
    for other in replicas if replica.rank == 0 else []:
        for name, plain in other["meters"].items():
            meter = Meter.from_plain(plain)
            state.meters[name].add(meter.average, meter.weight)


def _differences(own: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """What makes the continued run differ from the uninterrupted one by more than nothing."""
    here = {"threads": torch.get_num_threads(), **facts}
    if own.get("images") and facts.get("images"):
        del here["num_images"]  # `changed_images` says more
    consequences = {
        "global_batch": "the learning rate stays the checkpoint's",
        "num_images": "the order of the images is another one",
        "threads": "sums round differently",
    }
    notes = [
        f"{name.replace('_', ' ')} {own[name]} then, {here[name]} now: {consequence}"
        for name, consequence in consequences.items()
        if name in own and name in here and own[name] != here[name]
    ]
    current = versions()
    other = [f"{name} {then} (now {current.get(name)})" for name, then in own["versions"].items() if current.get(name) != then]
    return notes + ([f"it was written with {', '.join(other)}"] if other else [])


def _set_aside(path: Path, damage: str) -> None:
    aside = path.with_name(path.name + SET_ASIDE)
    path.replace(aside)
    log.warning("%s; it is set aside as %s", damage, aside.name)


def _load_optimizer(state: TrainState, layout: OfficialLayout, saved: Mapping[str, Any]) -> None:
    by_name = state.accelerator.parameters.by_name
    names = {id(parameter): name for name, parameter in by_name.items()}
    for group, saved_group in zip(state.optimizer.param_groups, saved["param_groups"], strict=True):
        own_names = [names[id(parameter)] for parameter in group["params"]]
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
                state.optimizer.state[by_name[name]][moment] = part.to(state.accelerator.device, copy=True)
        steps = layout.from_official({name: slot["step"].reshape(1).repeat(3) for name, slot in slots.items()})
        for name, step in steps.items():
            state.optimizer.state[by_name[name]]["step"] = step[0].clone()


def _local_parts(state: TrainState, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parameters = state.accelerator.parameters
    for name, value in whole.items():
        if value.shape != parameters.whole_shape(name):
            raise ValueError(f"{name} is {tuple(value.shape)}, the model has {tuple(parameters.whole_shape(name))}")
    return {name: parameters.part(name, value) for name, value in whole.items()}
