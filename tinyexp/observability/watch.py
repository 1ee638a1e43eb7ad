"""What a run tells the world while it goes: its figures to every sink, and what it is doing to whoever watches."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tinyexp.masking import masked
from tinyexp.observability.epoch_log import EpochLog
from tinyexp.observability.mlflow_log import MlflowCfg, MlflowLog
from tinyexp.observability.sinks import RecordsLost, Sink
from tinyexp.observability.status import FILE, Status
from tinyexp.observability.step_log import StepLog
from tinyexp.observability.tensorboard_log import TensorboardCfg, TensorboardLog
from tinyexp.observability.wandb_log import WandbCfg, WandbLog

Opener = Callable[[], Sink | None]  # None: the sink is switched off

logger = logging.getLogger("tinyexp")


class RunWatch:
    """For a `with` block around a run, on every rank; only the one that was given a folder tells anything.

    A sink that fails does not end the run: it is said once, counted, and tried again with the next record.
    """

    def __init__(self, status: Status, *, folder: Path | None = None, openers: Mapping[str, Opener] | None = None) -> None:
        """folder: of the run; None on ranks that write nothing. openers: of the sinks, by what a person calls them."""
        self._status = status
        self._folder = folder
        self._openers = openers
        self._sinks: list[Sink] = []
        self.lost: Counter[str] = Counter()  # records that a sink did not take, by its name

    def __enter__(self) -> Self:
        self._sinks = [sink for name, opener in (self._openers or {}).items() if (sink := _opened(name, opener))]
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for sink in self._sinks:
            self._try(sink.name, sink.close)
        self.enter(phase="stopped" if error_type else "finished")

    def enter(self, **changes: Any) -> None:
        """The run does something else from now on: new values of fields of `Status`."""
        self._status = replace(self._status, **changes)
        if self._folder is not None:
            folder, status = self._folder, self._status
            self._try(FILE, lambda: status.write(folder))

    def write_step(self, record: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            self._try(sink.name, lambda sink=sink: sink.write_step(record))

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        """The row of an epoch, after `step` steps of the run."""
        for sink in self._sinks:
            self._try(sink.name, lambda sink=sink: sink.write_epoch(row, step))

    def _try(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # whatever a network or a disk raises
            is_new = name not in self.lost
            self.lost[name] += error.count if isinstance(error, RecordsLost) else 1
            if is_new:
                logger.warning(
                    "%s does not take what the run tells it (%s); said once, the summary counts", name, masked(str(error))
                )


def sinks_of_run(
    folder: Path,
    first_step: int,
    first_epoch: int,
    tensorboard: TensorboardCfg,
    wandb: WandbCfg,
    mlflow: MlflowCfg,
    *,
    run_name: str,
    config: Mapping[str, Any],
) -> dict[str, Opener]:
    """Every sink that this project knows: `metrics.jsonl` and `log.txt` always, the others where they are switched on."""
    return {
        StepLog.name: lambda: StepLog(folder, first_step=first_step),
        EpochLog.name: lambda: EpochLog(folder, first_epoch=first_epoch),
        TensorboardLog.name: lambda: tensorboard.build(folder, first_step=first_step),
        WandbLog.name: lambda: wandb.build(folder, run_name, config, first_step=first_step),
        MlflowLog.name: lambda: mlflow.build(folder, run_name, config, first_step=first_step),
    }


def _opened(name: str, opener: Opener) -> Sink | None:
    try:
        return opener()
    except Exception as error:
        return _Closed(name, error)


class _Closed:
    """A sink that could not be opened, and so refuses every record."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._error = error

    def write_step(self, record: Mapping[str, Any]) -> None:
        raise self._error

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        raise self._error

    def close(self) -> None:
        pass
