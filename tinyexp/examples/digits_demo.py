"""The recipe in the small: a four-block DeiT learns scikit-learn's handwritten digits on two CPU cores in minutes.

    python -m tinyexp.data.digits data/digits              write the 1,797 images, once
    python -m tinyexp.examples.digits_demo                 train at tp=2, evaluate, close with a table

The same class, loop and keys as `vit_tp_exp`; only sizes differ. Measured figures stand in docs/vit_tp.md.
"""

import shlex
from dataclasses import dataclass, field

from tinyexp.accelerators.ema import EmaCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.entry import store_and_run_exp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.training.loss import LossCfg
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.schedule import LrSchedulerCfg


@dataclass
class DigitsDemo(VitTpExp):
    """A small DeiT on handwritten digits, with the full pipeline of the recipe, at tp=2 on CPUs."""

    epochs: int = 66  # passes over the sampler's selection, 20 steps each
    ray_cfg: RayCfg = field(
        default_factory=lambda: RayCfg(ray_num_worker=2, ray_num_gpus_per_worker=0.0, ray_num_cpus_per_worker=1)
    )
    module_cfg: ModuleCfg = field(
        default_factory=lambda: ModuleCfg("deit_digits_patch8_32", img_size=32, num_classes=10, drop_path_rate=0.0)
    )
    # Milder than for ImageNet: with 1,438 small images and minutes instead of days, the full strength would not be learnt.
    dataloader_cfg: DataLoaderCfg = field(
        default_factory=lambda: DataLoaderCfg(
            data_root="./data/digits/",
            input_size=32,
            train_batch_size_per_device=32,
            val_batch_size_per_device=180,
            num_workers=0,
            auto_augment="rand-m3-n1-mstd0.5",
            hflip=0.0,  # a mirrored digit is another sign
            reprob=0.1,
            num_repeats=2,
        )
    )
    loss_cfg: LossCfg = field(default_factory=lambda: LossCfg(mixup=0.2, mixup_prob=0.2))
    optimizer_cfg: OptimizerCfg = field(default_factory=lambda: OptimizerCfg(lr=1.2e-2))  # 1.5e-3 at the global batch of 64
    lr_scheduler_cfg: LrSchedulerCfg = field(default_factory=lambda: LrSchedulerCfg(warmup_epochs=4))
    ema_cfg: EmaCfg = field(default_factory=lambda: EmaCfg(model_ema_decay=0.99))  # the run has 1,320 steps, not 750,000

    def problems(self) -> list[str]:
        """With the command that writes the digits, where they are missing."""
        hint = f"; python -m tinyexp.data.digits {shlex.quote(self.dataloader_cfg.data_root)} writes the digits"
        return [line + hint if line.startswith("dataloader_cfg.data_root: no folder") else line for line in super().problems()]


if __name__ == "__main__":
    store_and_run_exp(DigitsDemo)
