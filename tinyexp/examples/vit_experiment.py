"""What every mode of the DeiT experiment stands on: its model and state, and the modes that train nothing."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.bench.comparison import runs_to_compare, show_comparison
from tinyexp.bench.throughput import BenchResult, measure_training_step
from tinyexp.bench.verify import Row, Subject, compare, show_rows
from tinyexp.examples.run_start import find_start, take_folder
from tinyexp.examples.vit_keys import VitKeys
from tinyexp.masking import masked, masked_values
from tinyexp.models.vit.convert import convert_fused_qkv_to_split, convert_split_qkv_to_fused
from tinyexp.models.vit.plan import build_tp_parallelize_plan, residual_stream
from tinyexp.observability import step_log, tensorboard_log
from tinyexp.observability.log import dispensable, show_summary, write_summary
from tinyexp.observability.status import Status
from tinyexp.observability.watch import RunWatch, sinks_of_run
from tinyexp.process import Axis, Environment, seed_everything
from tinyexp.training.checkpoint import resume
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.snapshot import OfficialLayout
from tinyexp.training.state import TrainState
from tinyexp.training.weights import load_pretrained

LAYOUT = OfficialLayout(to_official=convert_split_qkv_to_fused, from_official=convert_fused_qkv_to_split)


@dataclass
class VitExperiment(VitKeys):
    """A vision transformer on a mesh of processes."""

    def run(self) -> Any:
        """One rank's whole run. Returns what rank 0 shows in `report`."""
        accelerator = self._accelerator(self.accelerator_cfg)
        result = getattr(self, self.mode)(accelerator)
        accelerator.close()
        return result

    def bench(self, accelerator: Accelerator) -> list[BenchResult]:
        """Speed, memory and traffic of a whole training step, beside data parallelism, also in `bench.json`."""
        runs = [(self.accelerator_cfg, self.dataloader_cfg.train_batch_size_per_device)]
        if self.bench_cfg.against_ddp:
            multiple_of = 2 if self.loss_cfg.mixes else 1
            runs = runs_to_compare(accelerator.mesh.shape, *runs[0], multiple_of=multiple_of)
        results = [self._measure(cfg, batch) for cfg, batch in runs]
        if accelerator.is_main:
            with dispensable(self.run_folder / "bench.json"):
                write_summary(self.run_folder, {"runs": [result.record() for result in results]}, name="bench.json")
        return results

    def _measure(self, cfg: AcceleratorCfg, batch: int) -> BenchResult:
        accelerator = self._accelerator(cfg)
        mixer, criterion = self.loss_cfg.build(self.module_cfg.num_classes)
        return measure_training_step(
            self.build_state(accelerator),
            batch=batch,
            image_size=self.dataloader_cfg.input_size,
            num_classes=self.module_cfg.num_classes,
            cfg=self.bench_cfg,
            criterion=criterion,
            mixer=mixer,
            clip_grad=self.optimizer_cfg.clip_grad,
            label=cfg.label(accelerator.mesh.shape),
        )

    def verify(self, accelerator: Accelerator) -> list[Row]:
        """Steps of this run on synthetic images, on the mesh and on one process, in float64 and float32."""
        rows = []
        for precision in ("fp64", "fp32"):
            on_mesh = self._accelerator(replace(self.accelerator_cfg, precision=precision))
            rows += compare(on_mesh, self.subject(), self.verify_cfg)
        return rows

    def build_state(self, accelerator: Accelerator, facts: dict[str, Any] | None = None) -> TrainState:
        """Build, load weights, shard, build the optimizer, resume: in this order, on every rank.

        `facts` about this run are compared with those of the one that is resumed, and of an evaluation with those of the run
        that trained its weights. A training has its run folder then: what another run has left there is moved aside only after
        all ranks have loaded what they continue from.
        """
        seed_everything(self.seed + accelerator.replica.rank)
        model = self.module_cfg.build()
        if self.module_cfg.pretrained_from:
            source = self.module_cfg.pretrained_from
            trains, classes = self.mode == "train", (facts or {}).get("classes", ())
            loaded = load_pretrained(model, source, LAYOUT.from_official, may_drop_head=trains, classes=() if trains else classes)
            if accelerator.is_main:
                print(f"from {masked(source)}: {loaded}", flush=True)
        accelerator.prepare(model)
        optimizer = self.optimizer_cfg.build(model, global_batch=self._global_batch(accelerator))
        state = TrainState(
            accelerator=accelerator,
            optimizer=accelerator.owns(optimizer),
            lr_scheduler=self.lr_scheduler_cfg.build(optimizer, epochs=self.epochs, seed=self.seed),
            ema=self.ema_cfg.build(accelerator.parameters) if self.mode != "eval" or self.resume_from else None,
        )
        start = find_start(self, accelerator)
        if start.source:
            args = asdict(self) if self.mode == "train" else None  # an evaluation uses neither optimizer nor schedule
            notes = resume(state, read_checkpoint(start.source), LAYOUT, source=start.source, args=args, facts=facts)
            state.resumed_from = start.source
            if accelerator.is_main:
                position = f"epoch {state.epoch}, step {state.epoch_step} of it, {state.step} steps in all"
                print("\n  ".join([f"resumed from {start.source} at {position}", *notes]), flush=True)
        if self.mode == "train":
            take_folder(self, start, accelerator)
        return state

    def plan_of_run(self, state: TrainState, num_steps: int) -> str:
        """What a training says before its first step."""
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

    def watch(self, state: TrainState, *, steps_in_epoch: int) -> RunWatch:
        """What a training run tells while it goes. For a `with` block on every rank; the main one tells."""
        steps = self.epochs * steps_in_epoch
        now = Status(
            epoch=state.epoch,
            epochs=self.epochs,
            steps_in_epoch=steps_in_epoch,
            steps=steps if self.max_train_steps < 0 else min(steps, self.max_train_steps),
            first_step=state.step,
        )
        if not state.accelerator.is_main:
            return RunWatch(now)
        sections = (self.tensorboard_cfg, self.wandb_cfg, self.mlflow_cfg)
        told = masked_values(asdict(self))
        openers = sinks_of_run(self.run_folder, state.step, state.epoch, *sections, run_name=self.exp_name, config=told)
        return RunWatch(now, folder=self.run_folder, openers=openers)

    def watched_files(self) -> dict[str, str | None]:
        """Where the curves of a training run lie, for its summary."""
        events = str(self.run_folder / tensorboard_log.FOLDER) if self.tensorboard_cfg.enable_tensorboard else None
        return {"metrics": str(self.run_folder / step_log.FILE), "tensorboard": events}

    def report(self, result: Any) -> None:
        """Close a training run with a table of what was reached and where it lies, a verification with its verdict."""
        if self.mode == "train":
            from tinyexp.report.write import try_report  # what draws it is loaded by this process alone

            show_summary(self.exp_name, result | (try_report(self.run_folder) if self.write_report else {}))
        elif self.mode == "bench":
            show_comparison(result)
        elif self.mode == "verify":
            show_rows(result)

    def _accelerator(self, cfg: AcceleratorCfg) -> Accelerator:
        device = cfg.device if self.ray_cfg.ray_num_gpus_per_worker else "cpu"
        return replace(cfg, device=device).build(Environment.read(), build_tp_parallelize_plan)

    def subject(self) -> Subject:
        """This run as `verify` wants it: its loader over synthetic images, small batches, no loader processes."""
        loader_cfg = replace(
            self.dataloader_cfg,
            fake_data=True,
            fake_data_len=512,
            num_workers=0,
            train_batch_size_per_device=self.verify_cfg.images_per_replica,
        )

        def batches(replica: Axis) -> Iterator[tuple[Tensor, Tensor]]:
            classes = self.module_cfg.num_classes
            return iter(loader_cfg.build_train(replica, num_classes=classes, seed=self.seed, device_type="cpu"))

        mixer, criterion = self.loss_cfg.build(self.module_cfg.num_classes)
        return Subject(
            build_state=self.build_state,
            batches=batches,
            seed=self.seed,
            mixer=mixer,
            criterion=criterion,
            residual_stream=residual_stream,
            is_noise=lambda name: name.endswith("attn.k.bias"),  # softmax ignores what a key bias adds
        )

    def _global_batch(self, accelerator: Accelerator) -> int:
        return self.dataloader_cfg.train_batch_size_per_device * accelerator.replica.size
