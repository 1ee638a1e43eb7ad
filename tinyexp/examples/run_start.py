"""Where a run starts: from which checkpoint, and whether what lies in its folder is its own."""

import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from tinyexp.accelerators.base import Accelerator
from tinyexp.examples.vit_keys import VitKeys
from tinyexp.experiment.run_folder import set_earlier_run_aside
from tinyexp.experiment.run_id import run_id
from tinyexp.masking import masked
from tinyexp.observability import epoch_log, mlflow_log, status, step_log, tensorboard_log, wandb_log
from tinyexp.report.run_files import RECORD, REPORT
from tinyexp.training.checkpoint import AUTO, lies_in, newest_good
from tinyexp.training.predictions import FILES
from tinyexp.training.unreadable import BAD_IMAGES

RUN_IDS = "run_ids"  # the entry of RECORD by which a run that is started again knows its own files


@dataclass(frozen=True)
class RunStart:
    """The same on every rank."""

    source: str  # the checkpoint to continue from; empty where there is none
    keeps_folder: bool  # what lies in the run folder belongs to this run


def find_start(keys: VitKeys, accelerator: Accelerator) -> RunStart:
    """Where to start. Every rank must call it.

    A training whose ranks are started again continues from what it has saved, if anything; other modes do as they are told.
    Raises: CheckpointError where every checkpoint is damaged, or where `resume_from=auto` has none to give to such a mode.
    """
    ids = set(run_ids(accelerator))
    start = accelerator.exchange(_start(keys, ids) if accelerator.is_main else None)[0]
    assert start is not None, "rank 0 is the main one"
    if keys.resume_from == AUTO and not start.source and keys.mode != "train":
        raise keys.nothing_to_resume()
    return start


def run_ids(accelerator: Accelerator) -> list[str]:
    """Of the launchers of all ranks. Every rank must call it."""
    return sorted(set(accelerator.exchange(run_id())) - {""})


def take_folder(keys: VitKeys, start: RunStart, accelerator: Accelerator) -> None:
    """Make the run folder that of this training. Every rank must call it, and nothing is moved where one has failed before."""
    accelerator.barrier()
    if not accelerator.is_main or start.keeps_folder:
        return
    names = [*keys.checkpoint_cfg.patterns(), epoch_log.FILE, "summary.json", "curves.png", BAD_IMAGES, *FILES]
    names += [step_log.FILE, status.FILE, tensorboard_log.FOLDER, *wandb_log.FILES, mlflow_log.ID_FILE, RECORD, REPORT]
    if aside := set_earlier_run_aside(keys.run_folder, names):
        print(f"what an earlier run has left in {keys.run_folder} lies in {aside} now", flush=True)


def real_name(source: str) -> str:
    """What a file of weights is called wherever one stands: its path without links and `..`, or its URL without secrets."""
    return masked(source) if "://" in source else str(Path(source).expanduser().resolve())


def _start(keys: VitKeys, ids: Set[str]) -> RunStart:
    source, folder = keys.resume_from, keys.run_folder
    again = keys.mode == "train" and not ids.isdisjoint(_ids_in(folder))
    if again or source == AUTO:
        found = newest_good(folder, keys.checkpoint_cfg)
        if found is None and source == AUTO and keys.mode == "train":
            print(f"resume_from=auto: {folder} holds no checkpoint, the run starts anew", flush=True)
        source = str(found) if found else "" if source == AUTO else source
    return RunStart(source, keeps_folder=again or lies_in(folder, source))


def _ids_in(folder: Path) -> list[str]:
    """Of the run that took the folder last."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))[RUN_IDS]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no run, or one of another version
    return found if isinstance(found, list) else []
