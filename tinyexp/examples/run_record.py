"""What a run is, written down when it starts: `run.json`, from which its report and its command can be told later."""

import importlib.metadata
import math
import os
import platform
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from tinyexp.accelerators.base import Accelerator
from tinyexp.bench.plan import sharding
from tinyexp.examples.vit_experiment import VitExperiment
from tinyexp.experiment.command import changed_keys, command_words
from tinyexp.masking import masked, masked_values
from tinyexp.models.vit.plan import build_tp_parallelize_plan, residual_stream
from tinyexp.process import available_cores

PACKAGES = ("tinyexp", "torch", "torchvision", "timm", "numpy", "pillow", "ray")


def run_record(experiment: VitExperiment, accelerator: Accelerator) -> dict[str, Any]:
    """Plain values about the run of this rank, whose model is prepared: what was asked, what runs it, and how it is sharded.

    Passwords in URLs are masked.
    """
    module = type(experiment).__module__
    return {
        "experiment": f"{module}:{type(experiment).__qualname__}",
        "exp_name": experiment.exp_name,
        "model": experiment.module_cfg.model_name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "working_folder": os.getcwd(),
        "command": shlex.join(command_words(experiment)),
        "changed": {key: [_shown(each) for each in pair] for key, pair in changed_keys(experiment).items()},
        "departures": experiment.departures(),
        "config": _strict(masked_values(asdict(experiment))),
        "environment": _environment(accelerator),
        "mesh": asdict(accelerator.mesh.shape),
        "parallelism": _parallelism(experiment, accelerator),
    }


def _environment(accelerator: Accelerator) -> dict[str, Any]:
    device = accelerator.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})",
        "processes": accelerator.world.size,
        "cores": available_cores(),
        "threads of a rank": torch.get_num_threads(),
        "precision": accelerator.precision,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _parallelism(experiment: VitExperiment, accelerator: Accelerator) -> dict[str, Any]:
    """The plan, what of each weight lies on a rank, and what a step sends."""
    cfg, mesh, model = experiment.accelerator_cfg, accelerator.mesh.shape, accelerator.model
    batch = experiment.dataloader_cfg.train_batch_size_per_device
    plan = {}
    if mesh.tp > 1:
        plan = build_tp_parallelize_plan(model, activations=cfg.activations, overlap_chunks=cfg.overlap_chunks)
    parameters = accelerator.parameters
    return {
        "label": cfg.label(mesh),
        "global_batch": batch * accelerator.replica.size,
        "parameters": parameters.num_whole(),
        "parameters_on_a_rank": sum(each.numel() for each in parameters.by_name.values()),
        "plan": {pattern: type(style).__name__ for pattern, style in plan.items()},
        "sharding": [asdict(row) for row in sharding(parameters)],
        "traffic": [asdict(line) for line in accelerator.traffic(residual_stream(model, batch))],
    }


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value  # strict JSON has no number for it


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return masked(value) or '""'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else masked(str(value))
