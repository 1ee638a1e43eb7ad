"""A checkpoint file that the official code wrote, taken up by this project. It belongs to a tiny model in float32."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.golden.experiment import experiment_of, recorded_world
from tests.golden.jobs import ONE_PROCESS, TP_2_REPLICATED, Job
from tests.golden.record import FOLDER, load
from tests.golden.runs import Run, run_experiment
from tinyexp.examples import vit_experiment
from tinyexp.examples.vit_tp_exp import LAYOUT, VitTpExp
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.snapshot import assemble, take_snapshot

OFFICIAL_FILE = FOLDER / "checkpoint_nano_after_epoch1.pth"


@dataclass
class Resumed:
    """What one rank found."""

    first_half: Run  # two of four epochs of our own
    second_half: Run  # the other two, from the official file
    own_checkpoint: dict[str, Any]  # of the first half
    saved_again: dict[str, Any] | None  # the official file, loaded and saved, nothing trained; of the main rank
    scores: dict[str, float]  # mode=eval of the official file


@dataclass(frozen=True)
class ResumeCase(Job):
    """Half of a recorded run of ours, then the other half from the official file, on one mesh."""

    def run(self, folder: Path) -> Resumed:
        accelerator = self.mesh.build("f32")
        first = self._experiment(folder / "first")
        first.max_train_steps = 2 * self.recorded["straight"]["steps_per_epoch"]
        first_half = run_experiment(first, accelerator)
        own_checkpoint = read_checkpoint(first.run_folder / first.checkpoint_cfg.last_ckpt_name)
        # Official files hold no random state. The generators stay where the first half left them, as in an uninterrupted run.
        with mock.patch.object(vit_experiment, "seed_everything"):
            second_half = run_experiment(self._experiment(folder / "second", resume_from=str(OFFICIAL_FILE)), accelerator)
        state = self._experiment(folder / "again", resume_from=str(OFFICIAL_FILE)).build_state(accelerator)
        snapshot = take_snapshot(state, args={}, facts={})
        saved_again = assemble(snapshot, LAYOUT, group=accelerator.open_host_group(), is_main=accelerator.is_main)
        with recorded_world():
            scores = self._experiment(folder / "eval", resume_from=str(OFFICIAL_FILE), mode="eval").eval(accelerator)
        return Resumed(first_half, second_half, own_checkpoint, saved_again, scores)

    @property
    def recorded(self) -> dict[str, Any]:
        return load("resume_nano")["cases"]["golden_nano__w1_dist__dp0.0__f32"]

    def _experiment(self, folder: Path, **settings: str) -> VitTpExp:
        return replace(experiment_of(self.recorded["straight"]["cmdline"], output_root=folder), **settings)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        return self.mesh.name


def resume_cases() -> list[ResumeCase]:
    return [ResumeCase(ONE_PROCESS), ResumeCase(TP_2_REPLICATED)]


def shape_of(value: Any) -> Any:
    """The layout of a checkpoint: every tensor as its dtype and shape, every mapping in its order."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, Mapping):
        return {str(key): shape_of(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shape_of(inner) for inner in value]
    return value


def differing(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[str]:
    """The paths at which two nested mappings are not the same, bit for bit."""
    found = [f"only in one: {key}" for key in one.keys() ^ other.keys()]
    for key in one.keys() & other.keys():
        first, second = one[key], other[key]
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            found += [f"{key}.{path}" for path in differing(first, second)]
        elif not (torch.equal(first, second) if isinstance(first, Tensor) else first == second):
            found.append(str(key))
    return found
