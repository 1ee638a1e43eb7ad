"""The curves of a run for TensorBoard."""

import importlib.util
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyexp.observability.growing_file import GrowingFile
from tinyexp.observability.sinks import curves
from tinyexp.process import host_name

FOLDER = "tensorboard"
VERSION = "brain.Event:2"  # of the format, as its readers know it
NUMBERS = itertools.count()  # of the event files of this process, whose names would be alike within a second


@dataclass
class TensorboardCfg:
    """TensorBoard, in the run folder."""

    enable_tensorboard: bool = True  # write the curves of steps and epochs to <run folder>/tensorboard

    def problems(self) -> list[str]:
        if not self.enable_tensorboard or importlib.util.find_spec("tensorboard"):
            return []
        key = "tensorboard_cfg.enable_tensorboard"
        return [f"{key}=true: the package tensorboard is not installed; pip install tensorboard, or set {key}=false"]

    def build(self, run_folder: Path, *, first_step: int) -> "TensorboardLog | None":
        """The log of the rank that calls it; None where it is switched off. What it imports takes a sixth of a second."""
        return TensorboardLog(run_folder / FOLDER, first_step=first_step) if self.enable_tensorboard else None


class TensorboardLog:
    """An event file of one run. Points of an epoch stand at the number of steps that were done by its end.

    Each event is written where it arises and at once: the package's own writer has a thread for that, which dies of a full disk,
    prints its traceback, and takes nothing any more when there is room again (tensorboard 2.20).
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Points from `first_step` on, which an interrupted run may have written, are purged: those steps come again."""
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{host_name()}.{os.getpid()}.{next(NUMBERS)}"
        self._file = GrowingFile(folder / name)
        self._records = RecordWriter(self._file)
        self._add(file_version=VERSION)
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def write_step(self, record: Mapping[str, Any]) -> None:
        """Raises: OSError where the points cannot be written; then nothing of them is in the file."""
        self._write(curves("step", record), record["step"])

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        """Raises: OSError, as `write_step`."""
        self._write(curves("epoch", row), step)

    def close(self) -> None:
        self._file.close()

    def _write(self, points: Mapping[str, float], step: int) -> None:
        """All points in one event: several would cost several times as much."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in points.items()]
        self._add(step=step, summary=Summary(value=values))

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
