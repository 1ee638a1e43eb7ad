"""The curves of a run at an MLflow server."""

import contextlib
import importlib.util
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyexp.keys import leaves
from tinyexp.observability.sinks import RecordsLost, curves, known_id

ID_FILE = "mlflow_run_id.txt"  # in the run folder
# What the package does by itself would hold a run for minutes at its start when there is no server.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
MOST_PARAMS = 100  # that a server takes at once
MOST_AT_ONCE = 50  # records in a request; a server takes 1000 figures
MOST_WAITING = 1000  # records for the server; with more, new ones are lost
END_S = 30  # that the last records have to arrive in


@dataclass
class MlflowCfg:
    """MLflow, beside the run folder."""

    enable_mlflow: bool = False  # send the figures of each step and epoch; needs the package mlflow or mlflow-skinny
    tracking_uri: str = ""  # the server, as http://host:5000; empty: MLFLOW_TRACKING_URI
    experiment: str = "tinyexp"  # where the run appears; made where it does not exist

    def problems(self) -> list[str]:
        if not self.enable_mlflow:
            return []
        if not importlib.util.find_spec("mlflow"):
            key = "mlflow_cfg.enable_mlflow"
            return [f"{key}=true: the package mlflow is not installed; pip install mlflow-skinny, or leave the key false"]
        if not (self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")):
            return ['mlflow_cfg.tracking_uri="": the address of a server is needed, here or in MLFLOW_TRACKING_URI']
        return []

    def build(self, run_folder: Path, run_name: str, config: Mapping[str, Any], *, first_step: int) -> "MlflowLog | None":
        """The log of the rank that calls it; None where it is switched off."""
        if not self.enable_mlflow:
            return None
        known = known_id(run_folder / ID_FILE, first_step=first_step)
        log = MlflowLog(self.tracking_uri or None, self.experiment, run_name, config, run_id=known)
        run_folder.mkdir(parents=True, exist_ok=True)
        (run_folder / ID_FILE).write_text(log.run_id)
        return log


class MlflowLog:
    """One run. A thread sends, so that no step waits for the network; it may fall behind so far."""

    name = "MLflow"

    def __init__(
        self, tracking_uri: str | None, experiment: str, run_name: str, config: Mapping[str, Any], *, run_id: str | None
    ) -> None:
        """run_id: of the run that this one goes on with; None for a new one."""
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        for noisy in ("mlflow", "urllib3"):  # which would say each failure that is counted here
            logging.getLogger(noisy).setLevel(logging.ERROR)
        self._client = MlflowClient(tracking_uri=tracking_uri)
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
            self.run_id = run_id
        else:
            found = self._client.get_experiment_by_name(experiment)
            experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
            self.run_id = self._client.create_run(experiment_id, run_name=run_name).info.run_id
            params = [Param(name, str(value)) for name, value in leaves(config)]
            for first in range(0, len(params), MOST_PARAMS):
                self._client.log_batch(self.run_id, params=params[first : first + MOST_PARAMS])
        self._waiting: queue.Queue[list[Any] | None] = queue.Queue(MOST_WAITING)  # None: nothing comes any more
        self._failed: deque[Exception] = deque()  # an error for each record that did not arrive and is not counted yet
        self._given = self._done = 0  # records; each number is changed by one thread
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._sender.start()

    def write_step(self, record: Mapping[str, Any]) -> None:
        self._give(curves("step", record), record["step"])

    def write_epoch(self, row: Mapping[str, Any], step: int) -> None:
        self._give(curves("epoch", row), step)

    def close(self) -> None:
        """Takes END_S at most. Raises: RecordsLost with what has not arrived by then."""
        deadline = time.monotonic() + END_S
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=END_S)
        self._sender.join(max(0.0, deadline - time.monotonic()))
        if self._sender.is_alive():
            late = TimeoutError(f"the server has not taken all within {END_S} s of the end")
            self._failed.extend([late] * (self._given - self._done))
        self._count()

    def _give(self, points: Mapping[str, float], step: int) -> None:
        """Raises: RecordsLost where this record, or one before it that is not counted yet, does not arrive."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        try:
            self._waiting.put_nowait([Metric(name, value, now, step) for name, value in points.items() if math.isfinite(value)])
            self._given += 1
        except queue.Full:
            self._failed.append(TimeoutError(f"the server is too slow: {MOST_WAITING} records wait for it"))
        self._count()

    def _count(self) -> None:
        lost = [self._failed.popleft() for _ in range(len(self._failed))]
        if lost:
            raise RecordsLost(len(lost), str(lost[-1]))

    def _send_all(self) -> None:
        """What the thread does: send what waits, as much at once as a server takes, and end the run there."""
        is_open = True
        while is_open:
            records = self._next()
            is_open = records[-1] is not None
            known = [record for record in records if record is not None]
            try:
                self._client.log_batch(self.run_id, metrics=[metric for record in known for metric in record])
            except Exception as error:
                self._failed.extend([error] * len(known))
            self._done += len(known)
        try:
            self._client.set_terminated(self.run_id)
        except Exception as error:
            self._failed.append(error)

    def _next(self) -> list[list[Any] | None]:
        records = [self._waiting.get()]
        while records[-1] is not None and len(records) < MOST_AT_ONCE:
            try:
                records.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return records
