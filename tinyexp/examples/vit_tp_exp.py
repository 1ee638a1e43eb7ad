"""DeiT by the official recipe, with tensor parallelism.

    python -m tinyexp.examples.vit_tp_exp                  train DeiT-S on ImageNet, 300 epochs, 2 GPUs
    python -m tinyexp.examples.vit_tp_exp mode=help        every key

Published with this recipe: 79.8 % top-1 after 300 epochs (arXiv:2012.12877, table 5). Recipe defaults are those of
facebookresearch/deit main.py @ 7e160fe4 and stand at the keys of each configuration.
"""

import contextlib
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from signal import Signals
from typing import Any

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader, TrainLoader
from tinyexp.data.sharing import Share
from tinyexp.errors import Diverged, NonFiniteLoss, PeerFailed, Stopped
from tinyexp.examples.run_record import run_record
from tinyexp.examples.run_start import RUN_IDS, run_ids
from tinyexp.examples.vit_evaluation import VitEvaluation
from tinyexp.examples.vit_experiment import LAYOUT
from tinyexp.experiment.entry import store_and_run_exp
from tinyexp.masking import masked_values
from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.build import (
    deit_base_patch16_224,
    deit_small_patch16_224,
    deit_tiny_patch16_224,
)
from tinyexp.models.vit.convert import convert_fused_qkv_to_split, convert_split_qkv_to_fused
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.observability import epoch_log
from tinyexp.observability.epoch_log import epoch_rows
from tinyexp.observability.log import dispensable, write_summary
from tinyexp.observability.plots import draw_curves
from tinyexp.observability.watch import RunWatch
from tinyexp.process import Environment, preserve_random_state
from tinyexp.redis_cache.service import Service, served_cache
from tinyexp.report.run_files import RECORD
from tinyexp.signals import StopRequest
from tinyexp.training.checkpoint_keeper import CheckpointKeeper
from tinyexp.training.epoch import Guards, StopAgreed, train_one_epoch
from tinyexp.training.files import FilesRecord
from tinyexp.training.loss import Criterion, Mixer
from tinyexp.training.state import TrainState
from tinyexp.training.unreadable import note_unreadable, stop_at_many_unreadable

__all__ = [
    "Attention",
    "VitTpExp",
    "build_tp_parallelize_plan",
    "convert_fused_qkv_to_split",
    "convert_split_qkv_to_fused",
    "deit_base_patch16_224",
    "deit_small_patch16_224",
    "deit_tiny_patch16_224",
]


@dataclass
class VitTpExp(VitEvaluation):
    """DeiT-S on ImageNet: trained, evaluated and measured under tensor parallelism."""

    def train(self, accelerator: Accelerator) -> dict[str, Any]:
        """The official loop: an epoch of steps, the schedule, a checkpoint, an evaluation, a line of log.txt.

        Raises: Stopped once everything is saved, after a signal.
        """
        with served_cache(self.redis_cfg, Environment.read(), accelerator.exchange) as service:
            return self._train(accelerator, service)

    def _train(self, accelerator: Accelerator, service: Service | None) -> dict[str, Any]:
        loader = self.dataloader_cfg.build_train(
            accelerator.replica,
            num_classes=self.module_cfg.num_classes,
            seed=self.seed,
            device_type=accelerator.device.type,
            cache=service.cache if service else None,
            share=Share(accelerator.readers, accelerator.gather_rows),
        )
        val_loader = self._val_loader(accelerator)
        facts = {
            "global_batch": self._global_batch(accelerator),
            "classes": loader.classes,
            "num_images": loader.num_images,
            "images": self._same_images(accelerator, train=loader, val=val_loader),
        }
        state = self.build_state(accelerator, facts)
        record = run_record(self, accelerator) | {RUN_IDS: run_ids(accelerator)}
        if accelerator.is_main:
            with dispensable(self.run_folder / RECORD):
                write_summary(self.run_folder, record, name=RECORD)
            print(self.plan_of_run(state, loader.batches_in_epoch), flush=True)
            if service:
                print(f"the training files' bytes are kept in memory: {service.description}", flush=True)
        with (
            StopRequest(second_leaves=True) as stop,
            CheckpointKeeper(self.run_folder, self.checkpoint_cfg, LAYOUT, accelerator) as keeper,
            self.watch(state, steps_in_epoch=loader.batches_in_epoch) as watch,
        ):
            save = partial(keeper.save, state, args=masked_values(asdict(self)), facts=facts)
            guards = Guards(
                stop,
                check_every=self.accelerator_cfg.check_every,
                check=partial(stop_at_many_unreadable, accelerator, loader, self.run_folder),
                save_every=self.checkpoint_cfg.save_every_steps,
                save=save,
                observe=watch.write_step,
            )
            first_step, start = state.step, time.monotonic()
            files = FilesRecord(accelerator, loader, service, self.run_folder)
            try:
                summary = self._epochs(state, loader, val_loader, files, keeper, guards, watch)
            except StopAgreed as request:
                save()
                keeper.wait()  # first of all: what follows may take longer than the sender of the signal waits
                note_unreadable(accelerator, loader, self.run_folder)
                files.end_unfinished_epoch()
                accelerator.barrier()
                raise self._stopped(request.signal_number, state) from None
            except (NonFiniteLoss, PeerFailed, Diverged):  # on all ranks at once, so that a save under way can be finished
                keeper.wait()
                accelerator.barrier()
                raise
        seconds = summary["train_seconds"]
        summary["first_step"] = first_step
        images = (state.step - first_step) * self._global_batch(accelerator)
        summary |= {"images_per_s": images / seconds if seconds else None, "wall_seconds": time.monotonic() - start}
        summary |= self.watched_files() | {"records_lost": dict(+watch.lost)}
        summary["started"] = record["started"]
        if accelerator.is_main:
            with dispensable(self.run_folder / "summary.json"):
                write_summary(self.run_folder, summary)
        return summary

    def _epochs(
        self,
        state: TrainState,
        loader: TrainLoader,
        val_loader: ImageLoader,
        files: FilesRecord,
        keeper: CheckpointKeeper,
        guards: Guards,
        watch: RunWatch,
    ) -> dict[str, Any]:
        """From where the state is to the last step. Returns the summary of the run."""
        accelerator = state.accelerator
        mixer, criterion = self.loss_cfg.build(self.module_cfg.num_classes)
        train_seconds, row = 0.0, {}
        most_steps = self.max_train_steps if self.max_train_steps >= 0 else math.inf
        while state.epoch < self.epochs and (state.train_stats or state.step < most_steps):
            if state.train_stats is None:
                start = time.monotonic()
                watch.enter(phase="training", epoch=state.epoch)
                num_batches = int(min(loader.batches_in_epoch, state.epoch_step + most_steps - state.step))
                self._train_epoch(state, loader, num_batches, mixer, criterion, guards)
                train_seconds += time.monotonic() - start
                guards.save()
            watch.enter(phase="evaluating", epoch=state.epoch)
            # a run that never ended within its epoch draws no random numbers for an evaluation there
            with contextlib.nullcontext() if state.epoch_is_trained else preserve_random_state():
                scores = self._score(state, val_loader, guards.stop)
            row = {f"train_{name}": value for name, value in (state.train_stats or {}).items()} | scores
            if row["test_acc1"] > state.max_accuracy:
                state.max_accuracy = row["test_acc1"]
                keeper.save_best(state)
            if not state.epoch_is_trained and state.step < most_steps:
                state.train_stats = None  # an earlier command has ended here, within the epoch, which goes on now
                continue
            row |= files.end_epoch() | {"epoch": state.epoch, "n_parameters": accelerator.parameters.num_whole()}
            if accelerator.is_main:
                print(f"Max accuracy: {state.max_accuracy:.2f}%", flush=True)
            watch.enter(top1=row["test_acc1"])
            watch.write_epoch(row, state.step)
            if not state.epoch_is_trained:
                break  # max_train_steps ends the run within the epoch, which a resumed run continues
            state.last_accuracy = row["test_acc1"]
            state.begin_next_epoch()
        return self._summary(state, row, train_seconds) | files.summary(val_loader)

    def _train_epoch(
        self, state: TrainState, loader: TrainLoader, num_batches: int, mixer: Mixer | None, criterion: Criterion, guards: Guards
    ) -> None:
        """Up to step `num_batches` of the epoch, and the schedule's step where that is its end."""
        loader.start_epoch(state.epoch, first_batch=state.epoch_step)
        state.train_stats = train_one_epoch(
            state,
            loader,
            num_batches=num_batches,
            criterion=criterion,
            mixer=mixer,
            clip_grad=self.optimizer_cfg.clip_grad,
            guards=guards,
        )
        state.epoch_is_trained = state.epoch_step == loader.batches_in_epoch
        if state.epoch_is_trained:
            state.lr_scheduler.step(state.epoch, metric=state.last_accuracy)

    def _summary(self, state: TrainState, row: dict[str, Any], train_seconds: float) -> dict[str, Any]:
        summary = {
            "top1": row.get("test_acc1"),
            "top1_ema": row.get("ema_test_acc1"),
            "max_accuracy": state.max_accuracy,
            "epochs": state.epoch,
            "steps": state.step,
            "train_seconds": train_seconds,
            "mesh": asdict(state.accelerator.mesh.shape),
            "checkpoint": str(self.run_folder / self.checkpoint_cfg.best_ckpt_name),
        }
        if state.accelerator.is_main:
            picture, title = self.run_folder / "curves.png", f"{self.exp_name}: {self.module_cfg.model_name}"
            with dispensable(picture):
                summary["curves"] = str(draw_curves(epoch_rows(self.run_folder), picture, title=title))
        return summary | {"log": str(self.run_folder / epoch_log.FILE)}

    def _stopped(self, number: int, state: TrainState) -> Stopped:
        where = f"step {state.step} (epoch {state.epoch}, step {state.epoch_step} of it)"
        path = self.run_folder / self.checkpoint_cfg.last_ckpt_name
        message = f"stopped by {Signals(number).name} after {where}: saved in {path}, continue with resume_from=auto"
        if state.accelerator.is_main:
            print(message, flush=True)
        return Stopped(message, signal_number=number)


if __name__ == "__main__":
    store_and_run_exp(VitTpExp)
