"""Recorded command lines of the official code, run by the shipped experiment."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.golden.experiment import experiment_of, recorded_world
from tests.golden.jobs import DDP_2, DP_2_TP_2_REPLICATED, MESHES, ONE_PROCESS, TP_2_REPLICATED, TP_2_SHARDED, Job
from tests.golden.record import Checksum, bias_parts, checksums, images_and_classes, load
from tests.golden.recorder import Epoch, Recorder
from tinyexp.accelerators.base import Accelerator
from tinyexp.examples.vit_tp_exp import LAYOUT, VitTpExp
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.snapshot import MOMENTS


@dataclass
class Run:
    """What one rank noted of one run."""

    replica: int
    epochs: list[Epoch]
    weights: dict[str, dict[str, Checksum]]  # of the model and its averages at the end
    saves_its_average: bool  # the checkpoint holds this rank's average bit for bit
    bias_parts: dict[str, Checksum]
    optimizer: dict[str, dict[str, Any]]  # by official name: step, and checksums of the moments
    groups: list[dict[str, Any]]  # of the optimizer's checkpoint
    logits: dict[str, list[list[float]]]  # of the first 8 validation images


@dataclass(frozen=True)
class Case(Job):
    """A recorded variant on a mesh: the whole of it, or its first epochs."""

    variant: str
    num_epochs: int = 8

    def run(self, folder: Path) -> Run:
        experiment = experiment_of(self.recorded["cmdline"], output_root=folder)
        if not self.is_whole:
            experiment.max_train_steps = self.num_epochs * self.recorded["steps_per_epoch"]
        return run_experiment(experiment, self.mesh.build(self.dtype))

    @property
    def dtype(self) -> str:
        return self.variant.rpartition("/")[2]

    @property
    def recorded(self) -> dict[str, Any]:
        return self._file["variants"][self.variant]

    @property
    def is_whole(self) -> bool:
        return self.num_epochs == len(self.recorded["epochs"])

    def table(self, kind: str, key: str | None) -> list[Any]:
        """What the record keeps once for all variants that share it; empty where a variant has none of it."""
        return self._file["tables"][kind][key] if key else []

    @property
    def _file(self) -> dict[str, Any]:
        return load(f"trajectory_w{self.mesh.replicas}_dist")

    def __str__(self) -> str:
        return f"{self.mesh.name}-{self.variant.replace('/', '-')}"


EACH_MECHANISM = [  # mixing or not, repetition or not, clipping, drop path, both precisions, every mesh
    Case(ONE_PROCESS, "dp0.1_clip1/f64"),
    Case(TP_2_REPLICATED, "dp0.1_clip1/f64", num_epochs=2),
    Case(ONE_PROCESS, "dp0_nomix_ce/f32", num_epochs=3),
    Case(DDP_2, "dp0_norepeat/f32", num_epochs=2),
    Case(TP_2_SHARDED, "dp0.1_clip1/f64", num_epochs=3),
    Case(TP_2_SHARDED, "dp0_nomix_ls0.1/f32", num_epochs=2),
]


def every_case() -> list[Case]:
    """All variants on the four meshes, and the float64 ones on the mesh of both axes."""
    variants = {replicas: list(load(f"trajectory_w{replicas}_dist")["variants"]) for replicas in (1, 2)}
    cases = [Case(mesh, variant) for mesh in MESHES for variant in variants[mesh.replicas]]
    return cases + [Case(DP_2_TP_2_REPLICATED, variant) for variant in variants[2] if variant.endswith("f64")]


def run_experiment(experiment: VitTpExp, accelerator: Accelerator) -> Run:
    """Train, and read the end from the checkpoint that the experiment wrote. Every rank calls it."""
    recorder = Recorder(experiment)
    with recorded_world(), recorder.watching():
        experiment.train(accelerator)
    accelerator.barrier()  # the main rank has written the checkpoint
    checkpoint = read_checkpoint(experiment.run_folder / experiment.checkpoint_cfg.last_ckpt_name)
    whole = {name: accelerator.whole_like_weights(average.average) for name, average in recorder.averages.items()}
    weights = {"model": checkpoint["model"], **{name: LAYOUT.to_official(average) for name, average in whole.items()}}
    average = weights[f"ema{experiment.ema_cfg.model_ema_decay}"]
    return Run(
        replica=accelerator.replica.rank,
        epochs=recorder.epochs,
        weights={name: checksums(tensors) for name, tensors in weights.items()},
        saves_its_average=all(torch.equal(checkpoint["model_ema"][name], value) for name, value in average.items()),
        bias_parts=bias_parts(checkpoint["model"]),
        optimizer=_optimizer_by_name(checkpoint["optimizer"], list(checkpoint["model"])),
        groups=checkpoint["optimizer"]["param_groups"],
        logits=_logits(recorder, accelerator),
    )


def _optimizer_by_name(saved: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The saved state by name. The official numbering has the tensors without decay first, each group in the model's order."""
    undecayed = [name for name in names if name.endswith(".bias") or "norm" in name or name in ("cls_token", "pos_embed")]
    numbered = undecayed + [name for name in names if name not in undecayed]
    return {
        name: {"step": float(slot["step"]), **checksums({moment: slot[moment] for moment in MOMENTS})}
        for name, slot in zip(numbered, (saved["state"][index] for index in sorted(saved["state"])), strict=True)
    }


@torch.no_grad()
def _logits(recorder: Recorder, accelerator: Accelerator) -> dict[str, list[list[float]]]:
    """Of the first 8 validation images, by the weights and by each average."""
    images = images_and_classes("val")[0][:8].to(accelerator.dtype)
    accelerator.model.eval()
    logits = {"model": accelerator.model(images).tolist()}
    for name, average in recorder.averages.items():
        with average.in_place_of_weights():
            logits[name] = accelerator.model(images).tolist()
    return logits
