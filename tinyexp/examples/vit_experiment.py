"""What every mode of the DeiT experiment stands on: its keys and checks, its model and state, and the modes that train nothing.

Recipe defaults are those of facebookresearch/deit main.py @ 7e160fe4 and stand at the keys of each configuration.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.accelerators.ema import EmaCfg
from tinyexp.bench.comparison import runs_to_compare, show_comparison
from tinyexp.bench.plan import plan_page
from tinyexp.bench.throughput import BenchCfg, BenchResult, measure_training_step
from tinyexp.bench.verify import Row, Subject, VerifyCfg, compare, show_rows
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import ConfigError
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.run_folder import set_earlier_run_aside
from tinyexp.launch.ray_resources import NodeGroup
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.models.vit.build import (
    ModuleCfg,
)
from tinyexp.models.vit.convert import convert_fused_qkv_to_split, convert_split_qkv_to_fused
from tinyexp.models.vit.plan import build_tp_parallelize_plan, residual_stream
from tinyexp.observability.log import show_summary, write_summary
from tinyexp.observability.wandb_log import WandbCfg
from tinyexp.process import Axis, Environment, seed_everything
from tinyexp.redis_cache.config import RedisCfg
from tinyexp.training.checkpoint import AUTO, CheckpointCfg, newest_good, resume
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.loss import LossCfg
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.recipe import departures
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.snapshot import OfficialLayout
from tinyexp.training.state import TrainState
from tinyexp.training.weights import load_pretrained, source_problems

TP_ADVICE = "a smaller accelerator_cfg.tp_size, or accelerator_cfg.tp_across_nodes=true where the network is fast enough"
LAYOUT = OfficialLayout(to_official=convert_split_qkv_to_fused, from_official=convert_fused_qkv_to_split)


@dataclass
class VitExperiment(TinyExp):
    """A vision transformer on a mesh of processes."""

    modes: ClassVar[tuple[str, ...]] = ("train", "eval", "bench", "verify", "plan")

    launcher: str = "ray"  # ray: Ray starts the processes; local: this command does; mp: it is one rank of torchrun or by hand
    epochs: int = 300  # passes over the sampler's selection; DeiT main.py --epochs
    max_train_steps: int = -1  # optimizer steps of the whole run, exact; -1: as many as the epochs have
    resume_from: str = ""  # a checkpoint of ours or an official one to continue; auto: the newest good one of the run folder
    ray_cfg: RayCfg = field(default_factory=lambda: RayCfg(ray_num_worker=2, ray_num_cpus_per_worker=12))
    accelerator_cfg: AcceleratorCfg = field(default_factory=AcceleratorCfg)
    module_cfg: ModuleCfg = field(default_factory=ModuleCfg)
    dataloader_cfg: DataLoaderCfg = field(default_factory=DataLoaderCfg)
    loss_cfg: LossCfg = field(default_factory=LossCfg)
    optimizer_cfg: OptimizerCfg = field(default_factory=OptimizerCfg)
    lr_scheduler_cfg: LrSchedulerCfg = field(default_factory=LrSchedulerCfg)
    ema_cfg: EmaCfg = field(default_factory=EmaCfg)
    checkpoint_cfg: CheckpointCfg = field(default_factory=CheckpointCfg)
    bench_cfg: BenchCfg = field(default_factory=BenchCfg)
    verify_cfg: VerifyCfg = field(default_factory=VerifyCfg)
    redis_cfg: RedisCfg = field(default_factory=RedisCfg)
    wandb_cfg: WandbCfg = field(default_factory=WandbCfg)

    def problems(self) -> list[str]:
        """Everything about this configuration that cannot work. Builds the model on the meta device, so no weight exists yet."""
        model_problems = self.module_cfg.problems() + self.accelerator_cfg.problems()
        found = super().problems() + model_problems
        for section in (
            self.loss_cfg,
            self.optimizer_cfg,
            self.lr_scheduler_cfg,
            self.ema_cfg,
            self.checkpoint_cfg,
            self.bench_cfg,
            self.verify_cfg,
            self.wandb_cfg,
        ):
            found += section.problems()
        if self.epochs < 1:
            found.append(f"epochs={self.epochs}: a number of at least 1 is needed")
        if self.max_train_steps != -1 and self.max_train_steps < 1:
            found.append(f"max_train_steps={self.max_train_steps}: a number of at least 1 is needed, or -1 for no limit")
        if self.module_cfg.img_size != self.dataloader_cfg.input_size:
            found.append(
                f"module_cfg.img_size={self.module_cfg.img_size} and dataloader_cfg.input_size={self.dataloader_cfg.input_size}: "
                "the model takes the images of the loader; set both to one size"
            )
        found += self._weights_problems()
        if self.mode in ("train", "eval"):
            splits = ("train", "val") if self.mode == "train" else ("val",)
            found += self.dataloader_cfg.problems(
                mixup_active=self.loss_cfg.mixes, num_classes=self.module_cfg.num_classes, splits=splits
            )
        if self.mode == "train":
            found += self.redis_cfg.problems()
        if not model_problems:
            found += self._mesh_problems()
        return found

    def departures(self) -> list[str]:
        """Where the effective run on this machine is not the official recipe, and why that matters."""
        cfg, on_gpu = self.accelerator_cfg, self.ray_cfg.ray_num_gpus_per_worker and torch.cuda.device_count()
        try:
            replicas = cfg.num_replicas(cfg.mesh_shape(self.num_processes() or 1))
        except ConfigError:
            return []  # `problems` says what is wrong with the mesh
        batch = self.dataloader_cfg.train_batch_size_per_device * replicas
        return departures(asdict(self), global_batch=batch, precision=cfg.effective_precision("cuda" if on_gpu else "cpu"))

    def node_group(self) -> NodeGroup:
        """A tensor-parallel group talks at every layer, so it stays on one node."""
        return NodeGroup(self.accelerator_cfg.ranks_on_one_node(), TP_ADVICE)

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

        `facts` about this run are compared with those of the one that is resumed.
        """
        seed_everything(self.seed + accelerator.replica.rank)
        model = self.module_cfg.build()
        if self.module_cfg.pretrained_from:
            source = self.module_cfg.pretrained_from
            loaded = load_pretrained(model, source, LAYOUT.from_official, may_drop_head=self.mode == "train")
            if accelerator.is_main:
                print(f"from {source}: {loaded}", flush=True)
        accelerator.prepare(model)
        optimizer = self.optimizer_cfg.build(model, global_batch=self._global_batch(accelerator))
        state = TrainState(
            accelerator=accelerator,
            optimizer=accelerator.owns(optimizer),
            lr_scheduler=self.lr_scheduler_cfg.build(optimizer, epochs=self.epochs, seed=self.seed),
            ema=self.ema_cfg.build(accelerator.parameters) if self.mode != "eval" or self.resume_from else None,
        )
        source = self._resume_source(accelerator)
        if source:
            notes = resume(state, read_checkpoint(source), LAYOUT, source=source, facts=facts)
            if accelerator.is_main:
                position = f"epoch {state.epoch}, step {state.epoch_step} of it, {state.step} steps in all"
                print("\n  ".join([f"resumed from {source} at {position}", *notes]), flush=True)
        return state

    def _resume_source(self, accelerator: Accelerator) -> str:
        """The checkpoint to continue from, the same on every rank; empty where the run starts anew.

        A rank that a launcher has started again continues from what the attempts before it have saved, if anything.
        """
        source, found, again = self.resume_from, None, Environment.read().attempt > 0
        if accelerator.is_main and (again or source == AUTO):
            found = newest_good(self.run_folder, self.checkpoint_cfg)
            if found is None and source == AUTO:
                print(f"resume_from=auto: {self.run_folder} holds no checkpoint, the run starts anew", flush=True)
        source = accelerator.exchange(str(found) if found else "" if source == AUTO else source)[0]
        continues = bool(source) and Path(source).expanduser().absolute().parent == self.run_folder.absolute()
        if accelerator.is_main and self.mode == "train" and not continues and not again:
            names = [*self.checkpoint_cfg.patterns(), "log.txt", "summary.json", "curves.png"]
            if aside := set_earlier_run_aside(self.run_folder, names):
                print(f"what an earlier run has left in {self.run_folder} lies in {aside} now", flush=True)
        return source

    def report(self, result: Any) -> None:
        """Close a training run with a table of what was reached and where it lies, a verification with its verdict."""
        if self.mode == "train":
            show_summary(self.exp_name, result)
        elif self.mode == "bench":
            show_comparison(result)
        elif self.mode == "verify":
            show_rows(result)

    @property
    def starts_processes(self) -> bool:
        return self.mode != "plan"

    def needed_bytes(self) -> int:
        """Of two checkpoints: weights, their average and two moments, in float32, or float64."""
        numbers = sum(parameter.numel() for parameter in self._on_meta().parameters())
        return 2 * numbers * (4 if self.ema_cfg.model_ema else 3) * (8 if self.accelerator_cfg.precision == "fp64" else 4)

    def preview(self) -> str:
        """`mode=plan`: what this run would shard, send and hold."""
        on_gpu = self.ray_cfg.ray_num_gpus_per_worker and self.accelerator_cfg.device != "cpu"
        return plan_page(
            self.accelerator_cfg,
            self._on_meta(),
            build_plan=build_tp_parallelize_plan,
            residual_stream=residual_stream,
            num_processes=self.num_processes() or 1,
            device_type="cuda" if on_gpu else "cpu",
            batch=self.dataloader_cfg.train_batch_size_per_device,
            averaged=self.ema_cfg.model_ema,
        )

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

    def _weights_problems(self) -> list[str]:
        if self.mode == "eval" and not (self.module_cfg.pretrained_from or self.resume_from):
            return ["mode=eval has no weights to evaluate; set module_cfg.pretrained_from=<path or URL> or resume_from=<path>"]
        return source_problems({"module_cfg.pretrained_from": self.module_cfg.pretrained_from, "resume_from": self.resume_from})

    def _mesh_problems(self) -> list[str]:
        """Whether the processes form a mesh, and whether the model can be sharded over it."""
        num_processes = self.num_processes()
        if num_processes is None:
            return []  # a cluster decides, and the ranks check again
        model, drop_rate = self._on_meta(), self.module_cfg.drop_rate
        return self.accelerator_cfg.mesh_problems(num_processes, model, build_tp_parallelize_plan, drop_rate=drop_rate)

    def _on_meta(self) -> VisionTransformer:
        """The model without memory for its weights."""
        with torch.device("meta"):
            return self.module_cfg.build()
