"""What a report finds in a run folder."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyexp.errors import ConfigError
from tinyexp.experiment.run_folder import is_owned
from tinyexp.report.step_means import step_means

RECORD = "run.json"  # what a run is, written down when it starts
REPORT = "report.html"
STEP_ENTRIES = ("step", "images_per_s", "step_s", "data_s", "link_share")  # of metrics.jsonl


@dataclass(frozen=True)
class RunFolder:
    """A run by its files."""

    path: Path
    record: Mapping[str, Any]  # run.json, or what an evaluation noted; empty for a folder that has neither
    summary: Mapping[str, Any]  # empty until the run has ended
    scores: Mapping[str, Any]  # of mode=eval; empty where there was none
    rows: Sequence[Mapping[str, Any]]  # of log.txt
    steps: Sequence[Mapping[str, Any]]  # of metrics.jsonl, or means of some each
    is_running: bool


def read_run(path: Path) -> RunFolder:
    """Raises: ConfigError that says what a run folder holds."""
    if not path.is_dir():
        raise ConfigError(f"{path.absolute()} is no folder; give the run folder, <output_root>/<exp_name>")
    scores, rows = _json(path / "eval.json"), list(_json_lines(path / "log.txt"))
    record = _json(path / RECORD)
    if not (record or scores or rows):
        raise ConfigError(
            f"{path.absolute()} holds no run: there is no {RECORD}, log.txt or eval.json; "
            "give the run folder, <output_root>/<exp_name>"
        )
    summary = _json(path / "summary.json")
    if record and summary.get("started") != record.get("started"):
        summary = {}  # of the run that this one continues
    steps = step_means(_json_lines(path / "metrics.jsonl"), STEP_ENTRIES)
    return RunFolder(path, record or scores.get("run", {}), summary, scores, rows, steps, is_owned(path))


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path.absolute()} is no JSON: {error}; delete it to have a report without it") from None
    return found if isinstance(found, dict) else {}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line; without what is none, as a last one that is still being written."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row
