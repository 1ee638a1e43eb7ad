"""Saves a run beside its training: one checkpoint at a time, gathered and written by a thread of low priority."""

import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from tinyexp.accelerators.base import Accelerator
from tinyexp.errors import CheckpointError
from tinyexp.training.checkpoint import CheckpointCfg, step_file, step_files
from tinyexp.training.checkpoint_file import num_bytes, remove_fragments, save_checkpoint
from tinyexp.training.snapshot import OfficialLayout, assemble, take_snapshot
from tinyexp.training.state import TrainState

LEAVE_S = 30.0  # for the save under way, when an error ends the run

log = logging.getLogger("tinyexp")


class CheckpointKeeper:
    """Every rank has one and makes the same calls, in the same order. The main rank writes the files.

    A `with` block: at its end the save under way is finished, whatever has ended the block.
    """

    def __init__(self, folder: Path, cfg: CheckpointCfg, layout: OfficialLayout, accelerator: Accelerator) -> None:
        self._folder = folder
        self._cfg = cfg
        self._layout = layout
        self._is_main = accelerator.is_main
        self._group = accelerator.open_host_group()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._failures = 0  # in a row
        self.sent_bytes = 0  # by this rank for the last save, beside the training
        self._checkpoint: dict[str, Any] | None = None  # the last one, on the main rank
        self._saved: tuple[int, int, bool] | None = None  # the position of the last one
        if self._is_main and (fragments := remove_fragments(folder)):
            log.warning("removed what a killed run left unfinished in %s: %s", folder, ", ".join(fragments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self._join(LEAVE_S)
            return
        self.wait()
        if self._failures:
            raise CheckpointError(f"the last checkpoint of the run could not be saved: {self._error}")

    def save(self, state: TrainState, *, args: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Save the run as it is now, and go on at once. Waits for an earlier save; a position that is saved is not saved again.

        Raises: CheckpointError after more failed saves in a row than the configuration allows.
        """
        position = (state.step, state.epoch, state.train_stats is not None)
        self.wait()
        if position == self._saved and not self._failures:
            return
        self._saved, self._checkpoint = position, None
        snapshot = take_snapshot(state, args=args, facts=facts)
        self.sent_bytes = 0 if self._is_main else snapshot.sent_bytes
        path, within_epoch = self._folder / self._cfg.last_ckpt_name, state.epoch_step > 0 and not state.epoch_is_trained
        also = step_file(self._folder, state.step) if within_epoch and self._cfg.save_every_steps else None
        what = f"step {state.step} (epoch {state.epoch})"

        def work() -> None:
            self._checkpoint = assemble(snapshot, self._layout, group=self._group, is_main=self._is_main)
            if self._checkpoint is not None:
                self._write(self._checkpoint, path, what, also=also, previous=self._folder / self._cfg.previous_ckpt_name)
                self._prune()

        self._start(work)

    def save_best(self, state: TrainState) -> None:
        """Save once more what was saved last, as the best so far, with the score that has been found since."""
        self.wait()
        if self._checkpoint is None:
            return  # not the main rank
        checkpoint = self._checkpoint
        checkpoint["tinyexp"] |= {"max_accuracy": state.max_accuracy, "last_accuracy": state.last_accuracy}
        what = f"step {state.step} (epoch {state.epoch}), top-1 {state.max_accuracy:.2f} %,"
        self._start(lambda: self._write(checkpoint, self._folder / self._cfg.best_ckpt_name, what))

    @property
    def is_busy(self) -> bool:
        """Whether a save of this rank is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until nothing is under way. Raises: CheckpointError after too many failures in a row."""
        self._join()
        if self._failures > self._cfg.allow_save_failures:
            raise CheckpointError(f"{self._failures} saves in a row have failed, the last one so: {self._error}")

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()
        _schedule(self._thread, when_idle=True)  # here and not in the thread, so that it comes before `_join`

    def _join(self, timeout_s: float | None = None) -> None:
        """Wait for the save under way, which from here on computes as everything else does."""
        if self._thread is not None:
            _schedule(self._thread, when_idle=False)
            self._thread.join(timeout_s)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._failures, self._error = 0, None
        except Exception as error:  # of a thread: kept for the loop, which decides
            self._failures, self._error = self._failures + 1, error
            if self._is_main:
                log.error("%s", error)

    def _write(self, checkpoint: dict[str, Any], path: Path, what: str, **names: Path | None) -> None:
        if broken := _nonfinite(checkpoint):
            raise CheckpointError(f"{what} is not saved: {broken} is not finite; earlier checkpoints are untouched")
        start = time.monotonic()
        save_checkpoint(checkpoint, path, **names)
        size = num_bytes(checkpoint) / 1e6
        sys.stdout.write(f"saved {what} to {path}: {size:.0f} MB, written in {time.monotonic() - start:.1f} s\n")
        sys.stdout.flush()

    def _prune(self) -> None:
        for path in step_files(self._folder)[: -self._cfg.keep_step_ckpts]:
            path.unlink(missing_ok=True)


def _schedule(thread: threading.Thread, *, when_idle: bool) -> None:
    """Let a thread compute only where nothing else wants to, or as any other. Linux alone tells threads apart."""
    if _idle_can_be_left() and thread.is_alive() and thread.native_id:
        with contextlib.suppress(OSError):  # the thread has ended
            _set_policy(thread.native_id, when_idle=when_idle)


@functools.cache
def _idle_can_be_left() -> bool:
    """Whether a thread may be idle and then compute again: without CAP_SYS_NICE or RLIMIT_NICE the way back is closed."""
    policies = list[bool]()

    def to_idle_and_back() -> None:
        with contextlib.suppress(OSError):
            for when_idle in (True, False):
                _set_policy(threading.get_native_id(), when_idle=when_idle)
                policies.append(when_idle)

    if sys.platform == "linux":
        thread = threading.Thread(target=to_idle_and_back)
        thread.start()
        thread.join()
    return policies == [True, False]


def _set_policy(thread_id: int, *, when_idle: bool) -> None:
    os.sched_setscheduler(thread_id, os.SCHED_IDLE if when_idle else os.SCHED_OTHER, os.sched_param(0))


def _nonfinite(checkpoint: Mapping[str, Any]) -> str:
    """The first tensor of a checkpoint that holds a NaN or an infinity; empty where none does."""
    for kind in ("model", "model_ema"):
        for name, value in (checkpoint.get(kind) or {}).items():
            if not torch.isfinite(value).all():
                return f"{kind}.{name}"
    for index, slot in checkpoint["optimizer"]["state"].items():
        for name, value in slot.items():
            if not torch.isfinite(value).all():
                return f"optimizer.state.{index}.{name}"
    return ""
