"""The curves of a run at Weights & Biases."""

import importlib.util
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyexp.masking import masked
from tinyexp.observability.sinks import curves, known_id

ID_FILE, FOLDER = FILES = ("wandb_run_id.txt", "wandb")  # in the run folder; the package names the second
STEP = "optimizer_step"  # the x axis of every curve
# The package would wait for an unreachable server for 90 s at the start, while the other ranks wait too, and at the end for ever.
PATIENCE = {"init_timeout": 20, "finish_timeout": 30, "finish_timeout_raises": True}
OUR_OWN_OUTPUT = {"console": "off", "quiet": True}  # the run has logs of its own, and its last lines are its summary

logger = logging.getLogger("tinyexp")


@dataclass
class WandbCfg:
    """Weights & Biases, beside log.txt."""

    enable_wandb: bool = False  # send the figures of each step and epoch; needs the package wandb
    project: str = "tinyexp"  # where the run appears

    def problems(self) -> list[str]:
        if not self.enable_wandb or importlib.util.find_spec("wandb"):
            return []
        return ["wandb_cfg.enable_wandb=true: the package wandb is not installed; pip install wandb, or leave the key false"]

    def build(self, run_folder: Path, run_name: str, config: Mapping[str, Any], *, first_step: int) -> "WandbLog | None":
        """The log of the rank that calls it; None where it is switched off."""
        return WandbLog(self.project, run_folder, run_name, config, first_step=first_step) if self.enable_wandb else None


class WandbLog:
    """One run, which a resumed one goes on with; the package sends in a process of its own, so that no step waits.

    Where the server does not take the run, its curves are kept in the run folder, from which `wandb sync` sends them.
    """

    name = "Weights & Biases"

    def __init__(self, project: str, run_folder: Path, run_name: str, config: Mapping[str, Any], *, first_step: int) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._folder = run_folder
        run_id = known_id(run_folder / ID_FILE, first_step=first_step) or secrets.token_hex(4)
        run_folder.mkdir(parents=True, exist_ok=True)
        (run_folder / ID_FILE).write_text(run_id)
        settings = wandb.Settings(**PATIENCE, **OUR_OWN_OUTPUT)
        of_run = {"project": project, "name": run_name, "config": dict(config), "dir": str(run_folder), "settings": settings}
        of_run |= {"id": run_id, "resume": "allow"}
        try:
            self._run = wandb.init(**of_run)
        except Exception as error:  # no login, no network, a server that refuses
            logger.warning("%s: %s; %s", self.name, masked(str(error)).strip(), self._kept())
            wandb.teardown()  # or the id counts as in use
            self._run = wandb.init(**of_run, mode="offline")
        for group in ("step/*", "epoch/*"):  # not the package's own count, which takes no step twice, as a resumed run has some
            self._run.define_metric(group, step_metric=STEP)

    def write_step(self, record: Mapping[str, Any]) -> None:
        self._run.log(curves("step", record) | {STEP: record["step"]})

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        self._run.log(curves("epoch", row) | {STEP: step})

    def close(self) -> None:
        """Raises: TimeoutError where the server has not taken all within `finish_timeout`."""
        try:
            self._run.finish()
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self._kept()}") from None

    def _kept(self) -> str:
        return f"the curves are kept in {self._folder / FOLDER}, and `wandb sync <its newest folder>` sends them"
