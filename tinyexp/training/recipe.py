"""Where a run departs from the official DeiT recipe, and why that matters.

The official values are those of facebookresearch/deit main.py @ 7e160fe4 and of the published runs (README of the same
commit: 4 devices x 256 images, 300 epochs, fp16 autocast).
"""

from collections.abc import Iterator, Mapping
from typing import Any

OFFICIAL_GLOBAL_BATCHES = (512, 1024)  # images; both scale to the same learning rate per image

# dotted key -> (official value, what another value changes)
OFFICIAL: dict[str, tuple[Any, str]] = {
    "epochs": (300, "published accuracies are those of 300 epochs"),
    "max_train_steps": (-1, "the schedule is cut off before its end"),
    "module_cfg.drop_rate": (0.0, "the published models are trained without dropout"),
    "module_cfg.drop_path_rate": (0.1, "stochastic depth is tuned with the other regularisation"),
    "dataloader_cfg.color_jitter": (0.3, "it acts where auto_augment is off"),
    "dataloader_cfg.auto_augment": ("rand-m9-mstd0.5-inc1", "augmentation strength moves top-1 by points"),
    "dataloader_cfg.train_interpolation": ("bicubic", "training and evaluation should resize alike"),
    "dataloader_cfg.hflip": (0.5, "half of the images are mirrored in the published runs"),
    "dataloader_cfg.reprob": (0.25, "random erasing is part of the published regularisation"),
    "dataloader_cfg.remode": ("pixel", "erased boxes are filled with noise in the published runs"),
    "dataloader_cfg.recount": (1, "one box is erased in the published runs"),
    "dataloader_cfg.fast_decode": (False, "large JPEGs are decoded at a half or less of their size, to other pixels"),
    "dataloader_cfg.repeated_aug": (True, "without it the published runs lose top-1 (arXiv:2012.12877, table 8)"),
    "dataloader_cfg.num_repeats": (3, "each image comes three times an epoch in the published runs"),
    "loss_cfg.mixup": (0.8, "mixing is most of the published regularisation"),
    "loss_cfg.cutmix": (1.0, "mixing is most of the published regularisation"),
    "loss_cfg.mixup_prob": (1.0, "every batch is mixed in the published runs"),
    "loss_cfg.mixup_switch_prob": (0.5, "half of the batches take CutMix in the published runs"),
    "loss_cfg.mixup_mode": ("batch", "one draw a batch in the published runs"),
    "loss_cfg.smoothing": (0.1, "targets are smoothed in the published runs"),
    "optimizer_cfg.lr": (5e-4, "the linear rule scales this rate by global batch / 512"),
    "optimizer_cfg.weight_decay": (0.05, "decay and rate are tuned together"),
    "optimizer_cfg.opt_eps": (1e-8, "a larger value damps the update of rarely moved weights"),
    "optimizer_cfg.clip_grad": (None, "the published runs do not clip"),
    "lr_scheduler_cfg.sched": ("cosine", "the published runs follow a cosine"),
    "lr_scheduler_cfg.warmup_epochs": (5, "a shorter warm-up can diverge at this rate"),
    "lr_scheduler_cfg.warmup_lr": (1e-6, "the warm-up starts here in the published runs"),
    "lr_scheduler_cfg.min_lr": (1e-5, "the cosine ends near here in the published runs"),
    "ema_cfg.model_ema": (True, "no averaged weights will be evaluated or saved"),
    "ema_cfg.model_ema_decay": (0.99996, "it sets how many steps the average remembers"),
}


def departures(config: Mapping[str, Any], *, global_batch: int, precision: str) -> list[str]:
    """One line for each setting of the effective run that is not the official one; empty where nothing departs.

    `config` is nested as the command line's keys are. `precision` is what the run computes in, not what was asked for.
    """
    lines = [*_keys(config), *_image_sizes(config)]
    if global_batch not in OFFICIAL_GLOBAL_BATCHES:
        lines.append(
            f"global batch {global_batch}, official 1024: lr follows by the linear rule, which holds only near the tuned batch"
        )
    if precision != "fp16":
        lines.append(f"precision {precision}, official fp16 autocast: results differ by rounding")
    return lines


def _keys(config: Mapping[str, Any]) -> Iterator[str]:
    for key, (official, why) in OFFICIAL.items():
        value = _at(config, key)
        # 0 and null both switch clipping off
        if value != official and not (official is None and not value):
            yield f"{key}={_shown(value)}, official {_shown(official)}: {why}"


def _image_sizes(config: Mapping[str, Any]) -> Iterator[str]:
    size = _at(config, "dataloader_cfg.input_size")
    if size != 224:
        yield f"dataloader_cfg.input_size={size}, official 224: published accuracies are those of 224 pixels"


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
