"""DeiT by the official recipe, with tensor parallelism.

    python -m tinyexp.examples.vit_tp_exp                  train DeiT-S on ImageNet, 300 epochs, 2 GPUs
    python -m tinyexp.examples.vit_tp_exp mode=help        every key

Published with this recipe: 79.8 % top-1 after 300 epochs (arXiv:2012.12877, table 5). Recipe defaults are those of
facebookresearch/deit main.py @ 7e160fe4 and stand at the keys of each configuration.
"""

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from signal import Signals
from typing import Any

import torch

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader, PaddedBatches, TrainLoader
from tinyexp.errors import Diverged, NonFiniteLoss, PeerFailed, Stopped
from tinyexp.examples.vit_experiment import LAYOUT, VitExperiment
from tinyexp.experiment.entry import store_and_run_exp
from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.build import (
    deit_base_patch16_224,
    deit_small_patch16_224,
    deit_tiny_patch16_224,
)
from tinyexp.models.vit.convert import convert_fused_qkv_to_split, convert_split_qkv_to_fused
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.observability.log import RunLog, write_summary
from tinyexp.observability.plots import draw_curves
from tinyexp.process import Environment, preserve_random_state
from tinyexp.redis_cache.service import Service, served_cache
from tinyexp.signals import StopRequest
from tinyexp.training.checkpoint_keeper import CheckpointKeeper
from tinyexp.training.epoch import Guards, StopAgreed, evaluate, train_one_epoch
from tinyexp.training.files import FilesRecord, unreadable
from tinyexp.training.state import TrainState

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
class VitTpExp(VitExperiment):
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
        )
        facts = {
            "global_batch": self._global_batch(accelerator),
            "classes": loader.classes,
            "num_images": loader.num_images,
        }
        state = self.build_state(accelerator, facts)
        if accelerator.is_main:
            print(self._plan_of_run(state, loader.batches_in_epoch), flush=True)
            if service:
                print(f"the training files' bytes are kept in memory: {service.description}", flush=True)
        with (
            StopRequest(second_leaves=True) as stop,
            CheckpointKeeper(self.run_folder, self.checkpoint_cfg, LAYOUT, accelerator) as keeper,
        ):
            save = partial(keeper.save, state, args=asdict(self), facts=facts)
            guards = Guards(stop, self.accelerator_cfg.check_every, self.checkpoint_cfg.save_every_steps, save)
            first_step, start = state.step, time.monotonic()
            try:
                summary = self._epochs(state, loader, FilesRecord(accelerator, loader, service), keeper, guards)
            except StopAgreed as request:
                save()
                keeper.wait()
                accelerator.barrier()
                raise self._stopped(request.signal_number, state) from None
            except (NonFiniteLoss, PeerFailed, Diverged):  # on all ranks at once, so that a save under way can be finished
                keeper.wait()
                accelerator.barrier()
                raise
        seconds = summary["train_seconds"]
        images = (state.step - first_step) * self._global_batch(accelerator)
        summary |= {"images_per_s": images / seconds if seconds else None, "wall_seconds": time.monotonic() - start}
        if accelerator.is_main:
            write_summary(self.run_folder, summary)
        return summary

    def _epochs(
        self, state: TrainState, loader: TrainLoader, files: FilesRecord, keeper: CheckpointKeeper, guards: Guards
    ) -> dict[str, Any]:
        """From where the state is to the last step. Returns the summary of the run."""
        accelerator = state.accelerator
        val_loader = self._val_loader(accelerator)
        mixer, criterion = self.loss_cfg.build(self.module_cfg.num_classes)
        log = RunLog(self.run_folder, first_epoch=state.epoch) if accelerator.is_main else None
        online = self.wandb_cfg.build(self.exp_name, asdict(self)) if accelerator.is_main else None
        train_seconds, row = 0.0, {}
        most_steps = self.max_train_steps if self.max_train_steps >= 0 else math.inf
        while state.epoch < self.epochs and (state.train_stats or state.step < most_steps):
            train_stats = state.train_stats
            if train_stats is None:
                start = time.monotonic()
                loader.start_epoch(state.epoch, first_batch=state.epoch_step)
                train_stats = train_one_epoch(
                    state,
                    loader,
                    num_batches=int(min(loader.batches_in_epoch, state.epoch_step + most_steps - state.step)),
                    criterion=criterion,
                    mixer=mixer,
                    clip_grad=self.optimizer_cfg.clip_grad,
                    guards=guards,
                )
                train_seconds += time.monotonic() - start
                if state.epoch_step == loader.batches_in_epoch:
                    state.train_stats = train_stats
                    state.lr_scheduler.step(state.epoch, metric=state.last_accuracy)
                guards.save()
            row = {f"train_{name}": value for name, value in train_stats.items()} | self._score(state, val_loader, guards.stop)
            state.last_accuracy = row["test_acc1"]
            if state.last_accuracy > state.max_accuracy:
                state.max_accuracy = state.last_accuracy
                keeper.save_best(state)
            row |= files.end_epoch() | {"epoch": state.epoch, "n_parameters": accelerator.parameters.num_whole()}
            if log:
                print(f"Max accuracy: {state.max_accuracy:.2f}%", flush=True)
                log.write_epoch(row)
            if online:
                online.write_epoch(row)
            if state.train_stats is None:
                break  # max_train_steps ends the run within the epoch, which a resumed run continues
            state.begin_next_epoch()
        if online:
            online.close()
        return self._summary(state, row, train_seconds, log) | files.summary(val_loader)

    def _summary(self, state: TrainState, row: dict[str, Any], train_seconds: float, log: RunLog | None) -> dict[str, Any]:
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
        if log:
            title = f"{self.exp_name}: {self.module_cfg.model_name}"
            picture = draw_curves(log.rows(), self.run_folder / "curves.png", title=title)
            summary |= {"log": str(log.path), "curves": str(picture)}
        return summary

    def _stopped(self, number: int, state: TrainState) -> Stopped:
        where = f"step {state.step} (epoch {state.epoch}, step {state.epoch_step} of it)"
        path = self.run_folder / self.checkpoint_cfg.last_ckpt_name
        message = f"stopped by {Signals(number).name} after {where}: saved in {path}, continue with resume_from=auto"
        if state.accelerator.is_main:
            print(message, flush=True)
        return Stopped(message, signal_number=number)

    def eval(self, accelerator: Accelerator) -> dict[str, Any]:
        """Top-1 and top-5 of the given weights on the validation set, every image once, also in `eval.json`."""
        row = self._score(self.build_state(accelerator), self._val_loader(accelerator)) | {"mesh": asdict(accelerator.mesh.shape)}
        if accelerator.is_main:
            write_summary(self.run_folder, row, name="eval.json")
        return row

    def _score(self, state: TrainState, loader: ImageLoader, stop: StopRequest | None = None) -> dict[str, Any]:
        """Evaluate the weights and, where there is one, their average, which leaves the random state as it was."""
        stats = evaluate(state.accelerator, PaddedBatches(loader), stop=stop)
        row: dict[str, Any] = {f"test_{name}": stats[name] for name in ("loss", "acc1", "acc5")}
        bad = unreadable(state.accelerator, loader)
        if loader.bad_images:
            row |= {"test_images": stats["images"], "test_unreadable": len(bad)}
        if state.accelerator.is_main:
            print(f"Accuracy of the network on the {stats['images']} test images: {stats['acc1']:.1f}%", flush=True)
            if bad:
                some = ", ".join(bad[:3]) + ", ..." * (len(bad) > 3)
                print(f"{len(bad)} more could not be read and are left out: {some}", flush=True)
        if state.ema is not None:
            with preserve_random_state(), state.ema.in_place_of_weights():
                averaged = evaluate(state.accelerator, PaddedBatches(loader), header="Test EMA:", stop=stop)
            row |= {f"ema_test_{name}": averaged[name] for name in ("loss", "acc1", "acc5")}
        return row

    def _val_loader(self, accelerator: Accelerator) -> ImageLoader:
        return self.dataloader_cfg.build_val(
            accelerator.replica, num_classes=self.module_cfg.num_classes, device_type=accelerator.device.type
        )

    def _plan_of_run(self, state: TrainState, num_steps: int) -> str:
        accelerator, global_batch = state.accelerator, self._global_batch(state.accelerator)
        batch = self.dataloader_cfg.train_batch_size_per_device
        lines = [
            f"{self.module_cfg.model_name}: {accelerator.parameters.num_whole():,} parameters on "
            f"{self.accelerator_cfg.label(accelerator.mesh.shape)}, {accelerator.device}, {accelerator.precision}, "
            f"{torch.get_num_threads()} threads a rank",
            f"global batch {global_batch} = {batch} images x {accelerator.replica.size} replicas; lr {self.optimizer_cfg.lr:g} x "
            f"{global_batch} / 512 = {self.optimizer_cfg.scaled_lr(global_batch):g}; "
            f"{num_steps} steps an epoch, {self.epochs} epochs",
        ]
        if padding := accelerator.parameters.padding():
            lines.append(f"filled up with zeros, so that {accelerator.mesh.tp.size} ranks hold equal parts: {padding}")
        if departing := self.departures():
            lines += ["this run departs from the official recipe:", *(f"  {line}" for line in departing)]
        return "\n".join(lines)


if __name__ == "__main__":
    store_and_run_exp(VitTpExp)
