"""The keys of the DeiT experiment, and what can be said of a run before any process starts.

Recipe defaults are those of facebookresearch/deit main.py @ 7e160fe4 and stand at the keys of each configuration.
"""

from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
from timm.models.vision_transformer import VisionTransformer

from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.accelerators.ema import EmaCfg
from tinyexp.bench.plan import plan_page
from tinyexp.bench.throughput import BenchCfg
from tinyexp.bench.verify import VerifyCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import CheckpointError, ConfigError
from tinyexp.experiment.base import TinyExp
from tinyexp.launch.ray_resources import NodeGroup
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.limits import MOST, Range, path_problem, range_problems
from tinyexp.models.vit.build import (
    ModuleCfg,
)
from tinyexp.models.vit.plan import build_tp_parallelize_plan, residual_stream
from tinyexp.observability.mlflow_log import MlflowCfg
from tinyexp.observability.tensorboard_log import TensorboardCfg
from tinyexp.observability.wandb_log import WandbCfg
from tinyexp.redis_cache.config import RedisCfg
from tinyexp.training.checkpoint import AUTO, CheckpointCfg, checkpoints_in, lies_in
from tinyexp.training.loss import LossCfg
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.recipe import departures
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.weights import resume_problems, weights_problems

TP_ADVICE = "a smaller accelerator_cfg.tp_size, or accelerator_cfg.tp_across_nodes=true where the network is fast enough"
RANGES = {
    "epochs": Range(1, MOST),
    "max_train_steps": Range(1, MOST, "-1 for no limit", special=-1),
    "report_images": Range(0, 1000, "0 shows none"),
}


@dataclass
class VitKeys(TinyExp):
    """A vision transformer on a mesh of processes, before it runs."""

    modes: ClassVar[tuple[str, ...]] = ("train", "eval", "bench", "verify", "plan")

    launcher: str = "ray"  # ray: Ray starts the processes; local: this command does; mp: it is one rank of torchrun or by hand
    epochs: int = 300  # passes over the sampler's selection; DeiT main.py --epochs
    max_train_steps: int = -1  # optimizer steps of the whole run, exact; -1: as many as the epochs have
    resume_from: str = ""  # a checkpoint of ours or an official one to continue; auto: the newest good one of the run folder
    write_report: bool = True  # report.html in the run folder, at the end of a training
    report_images: int = 12  # validation images in it, with the model's answers and attention; 0: none
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
    tensorboard_cfg: TensorboardCfg = field(default_factory=TensorboardCfg)
    wandb_cfg: WandbCfg = field(default_factory=WandbCfg)
    mlflow_cfg: MlflowCfg = field(default_factory=MlflowCfg)

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
            self.tensorboard_cfg,
            self.wandb_cfg,
            self.mlflow_cfg,
        ):
            found += section.problems()
        found += range_problems("", self, RANGES)
        if self.module_cfg.img_size != self.dataloader_cfg.input_size:
            found.append(
                f"module_cfg.img_size={self.module_cfg.img_size} and dataloader_cfg.input_size={self.dataloader_cfg.input_size}: "
                "the model takes the images of the loader; set both to one size"
            )
        if self.mode == "verify" and self.loss_cfg.mixes and self.verify_cfg.images_per_replica % 2:
            found.append(
                f"verify_cfg.images_per_replica={self.verify_cfg.images_per_replica} is odd, but mixup and cutmix pair the "
                "images of a batch; set an even number, or switch both off with loss_cfg.mixup=0 loss_cfg.cutmix=0"
            )
        found += self._weights_problems()
        if self.mode in ("train", "eval"):
            splits = ("train", "val") if self.mode == "train" else ("val",)
            found += self.dataloader_cfg.problems(
                mixup_active=self.loss_cfg.mixes, num_classes=self.module_cfg.num_classes, splits=splits
            )
        else:
            found += self.dataloader_cfg.synthetic_problems(mixup_active=self.loss_cfg.mixes)
        if self.mode == "train":
            found += self.redis_cfg.problems()
            if self.redis_cfg.redis_cache_enabled and self.dataloader_cfg.fake_data:
                found.append(
                    "redis_cfg.redis_cache_enabled=true: with dataloader_cfg.fake_data=true there is no file that a cache could "
                    "keep; set one of the two to false"
                )
        if not model_problems and not self.ray_cfg.problems():
            found += self._mesh_problems()
        return found

    def validate(self) -> None:
        """Raises also: CheckpointError where `resume_from=auto` has nothing to give to a mode that trains nothing."""
        super().validate()
        if self.resume_from != AUTO or self.mode == "train" or not self.starts_processes:
            return
        if not checkpoints_in(self.run_folder, self.checkpoint_cfg):
            raise self.nothing_to_resume()

    def nothing_to_resume(self) -> CheckpointError:
        return CheckpointError(
            f"resume_from=auto: mode={self.mode} needs weights, and {self.run_folder.absolute()} holds no checkpoint; "
            "set resume_from=<path>, or the exp_name and output_root of the run that wrote one"
        )

    def departures(self) -> list[str]:
        """Where the effective run on this machine is not the official recipe, and why that matters."""
        cfg, on_gpu = self.accelerator_cfg, self.ray_cfg.ray_num_gpus_per_worker and torch.cuda.device_count()
        if cfg.problems() or self.ray_cfg.problems():
            return []  # which `problems` names
        try:
            replicas = cfg.num_replicas(cfg.mesh_shape(self.num_processes() or 1))
        except ConfigError:
            return []  # `problems` says what is wrong with the mesh
        batch = self.dataloader_cfg.train_batch_size_per_device * replicas
        return departures(asdict(self), global_batch=batch, precision=cfg.effective_precision("cuda" if on_gpu else "cpu"))

    def node_group(self) -> NodeGroup:
        """A tensor-parallel group talks at every layer, so it stays on one node."""
        return NodeGroup(self.accelerator_cfg.ranks_on_one_node(), TP_ADVICE)

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
            image_size=self.dataloader_cfg.input_size,
            averaged=self.ema_cfg.model_ema,
        )

    def _weights_problems(self) -> list[str]:
        if self.mode == "eval" and not (self.module_cfg.pretrained_from or self.resume_from):
            return ["mode=eval has no weights to evaluate; set module_cfg.pretrained_from=<path or URL> or resume_from=<path>"]
        source = self.module_cfg.pretrained_from
        found = weights_problems("module_cfg.pretrained_from", source) or self._moved_weights_problems(source)
        return found + resume_problems("resume_from", self.resume_from)

    def _moved_weights_problems(self, source: str) -> list[str]:
        """Whether a training would move aside the file, which exists, of the weights that it begins with."""
        if self.mode != "train" or "://" in source or path_problem("output_root", self.output_root):
            return []
        if not lies_in(self.run_folder, source):
            return []
        return [
            f"module_cfg.pretrained_from={source}: a training moves aside what lies in its own run folder; set another "
            f"exp_name to start from these weights, or resume_from={source} to continue that run"
        ]

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
