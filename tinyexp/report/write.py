"""`report.html`: a finished, stopped or running run on one page, from what lies in its folder.

python -m tinyexp report output/digits_demo
"""

import argparse
import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinyexp import __version__
from tinyexp.errors import CheckpointError, TinyExpError
from tinyexp.limits import home_path
from tinyexp.report.evaluation import evaluation
from tinyexp.report.page import Page, Section, write_page
from tinyexp.report.run_files import RECORD, REPORT, RunFolder, read_run
from tinyexp.report.samples import samples
from tinyexp.report.sections import (
    configuration,
    curves,
    environment,
    files,
    headline,
    parallelism,
    repetition,
)
from tinyexp.streams import end_of_output
from tinyexp.training.checkpoint_file import peek

OTHER_VERSION = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # of files that do not hold what is expected
NUM_SAMPLES = 12  # where the run's configuration does not say

log = logging.getLogger("tinyexp")


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from what lies there; returns its path.

    Takes seconds: the sample predictions are computed on the CPU. Where they cannot be, a warning and the page say why.
    Raises: ConfigError for a folder that holds no run.
    """
    run = read_run(run_folder)
    return write_page(build_page(run), run.path / REPORT)


def try_report(run_folder: Path) -> dict[str, str]:
    """Write the page of a run that has ended, and fail in no way. Returns: where it lies, for the run's table; else a warning."""
    try:
        return {"report": str(write_report(run_folder))}
    except Exception as error:  # whatever it is, the training is done and saved
        again = f"python -m tinyexp report {shlex.quote(str(run_folder))}"
        log.warning("the report could not be written: %s: %s; %s tries again", type(error).__name__, error, again)
        return {}


def build_page(run: RunFolder) -> Page:
    """The page of a run."""
    try:
        title, status, status_text, tiles = headline(run)
    except OTHER_VERSION as error:
        title, status, status_text, tiles = run.path.absolute().name, "unknown", _untold(error), []
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = [section for tell in PARTS for section in _told(tell, run)]
    return Page(title, status, status_text, tiles, found, written=f"Written {now} by tinyexp {__version__}.")


def _told(tell: Callable[[RunFolder], Section | list[Section] | None], run: RunFolder) -> list[Section]:
    """The sections of one part; where the files are not as this version writes them, one that says so."""
    try:
        found = tell(run)
    except OTHER_VERSION as error:
        title = tell.__name__.strip("_").capitalize()
        log.warning("the report lacks a part, %s: %s", title, _untold(error))
        return [Section(title, text=[_untold(error)])]
    return found if isinstance(found, list) else [found] if found is not None else []


def _untold(error: Exception) -> str:
    return f"The files of the run are not as this version writes them ({type(error).__name__}: {error})."


def _predictions(run: RunFolder) -> Section | None:
    """The model's answers for some images; a section that says why where they cannot be had."""
    title, source = "Sample predictions", _weights(run)
    if not source:
        return Section(title, text=["There is no checkpoint yet."])
    try:
        config = run.record.get("config") or _config_in(source)
        found = samples(source, _from_working_folder(config, run.record), config.get("report_images", NUM_SAMPLES))
    except (TinyExpError, OSError) as error:
        log.warning("the report has no sample predictions: %s", error)
        return Section(title, text=[f"They could not be computed: {error}"])
    if not found:
        return None
    return Section(
        title,
        text=[
            f"{len(found)} validation images and what the weights of {Path(source).name} answer, computed on the CPU. "
            "The maps show where the class token looks: in the last block, as the mean over its heads, and through all blocks, "
            "as the attention rollout of Abnar and Zuidema (arXiv:2005.00928). Bright is much; each map is scaled for itself."
        ],
        samples=found,
    )


def _weights(run: RunFolder) -> str:
    """The file of the run's weights: the best, else the last, else those that were evaluated; empty where there are none."""
    names = run.record.get("config", {}).get("checkpoint_cfg", {"best_ckpt_name": "best.ckpt", "last_ckpt_name": "last.ckpt"})
    for key in ("best_ckpt_name", "last_ckpt_name"):
        if (path := run.path / names[key]).is_file():
            return str(path)
    evaluated = run.scores.get("weights", "")
    return evaluated if "://" in evaluated or not evaluated else _as_the_run_saw(evaluated, run.record)


def _config_in(source: str) -> Mapping[str, Any]:
    """The configuration that a checkpoint carries. Raises: CheckpointError for one of the official code, which has another."""
    config = peek(Path(source)).get("args")
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{source} does not say how its run was configured, and neither does a {RECORD} beside it")
    return config


def _from_working_folder(config: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the data root as the run saw it, whatever folder this process works in."""
    data = config["dataloader_cfg"]
    return {**config, "dataloader_cfg": {**data, "data_root": _as_the_run_saw(data["data_root"], record)}}


def _as_the_run_saw(path: str, record: Mapping[str, Any]) -> str:
    return str(Path(record.get("working_folder", "."), Path(path).expanduser()))


PARTS = (curves, _predictions, evaluation, parallelism, configuration, environment, files, repetition)  # as the page shows them


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tinyexp.report.write <run folder>`: the exit status; a mistake is one message."""
    parser = argparse.ArgumentParser(prog="python -m tinyexp report", description="Write report.html into a run folder.")
    parser.add_argument("run_folder", type=home_path, help="<output_root>/<exp_name>, where log.txt lies")
    asked = parser.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    try:
        print(f"report: {write_report(asked.run_folder)}")
        return 0
    except (TinyExpError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_status", 1)


if __name__ == "__main__":
    with end_of_output():
        sys.exit(main())
