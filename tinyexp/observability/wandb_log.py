"""The epochs of a run at Weights & Biases."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class WandbCfg:
    """Weights & Biases, beside log.txt."""

    enable_wandb: bool = False  # send each row of log.txt; needs the package wandb
    project: str = "tinyexp"  # where the run appears

    def problems(self) -> list[str]:
        if not self.enable_wandb or importlib.util.find_spec("wandb"):
            return []
        return ["wandb_cfg.enable_wandb=true: the package wandb is not installed; pip install wandb, or leave the key false"]

    def build(self, run_name: str, config: Mapping[str, Any]) -> "WandbLog | None":
        """The log of the rank that calls it; None where it is switched off."""
        return WandbLog(self.project, run_name, config) if self.enable_wandb else None


class WandbLog:
    """One run. Close it, so that what is still on its way arrives."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(project=project, name=run_name, config=dict(config))

    def write_epoch(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row), step=row["epoch"])

    def close(self) -> None:
        self._run.finish()
