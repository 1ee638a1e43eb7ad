"""The shipped experiment, set as a recorded command line of the official code sets it, on the record's weights and images."""

import argparse
import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tests.golden.record import NUM_CLASSES, RecordedImages, formula_weights
from tinyexp.data import loaders
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.models.vit.convert import convert_fused_qkv_to_split
from tinyexp.parallel.apply import load_whole
from tinyexp.process import preserve_random_state

KEYS = {  # flag of the official main.py -> our keys; what a command leaves out keeps our default
    "--epochs": (int, ["epochs"]),
    "--input-size": (int, ["dataloader_cfg.input_size", "module_cfg.img_size"]),
    "--batch-size": (int, ["dataloader_cfg.train_batch_size_per_device"]),
    "--num_workers": (int, ["dataloader_cfg.num_workers"]),
    "--model": (str, ["module_cfg.recorded"]),
    "--drop-path": (float, ["module_cfg.drop_path_rate"]),
    "--lr": (float, ["optimizer_cfg.lr"]),
    "--clip-grad": (float, ["optimizer_cfg.clip_grad"]),
    "--mixup": (float, ["loss_cfg.mixup"]),
    "--cutmix": (float, ["loss_cfg.cutmix"]),
    "--smoothing": (float, ["loss_cfg.smoothing"]),
    "--warmup-epochs": (int, ["lr_scheduler_cfg.warmup_epochs"]),
    "--model-ema-decay": (float, ["ema_cfg.model_ema_decay"]),
}
WITHOUT_MEANING_HERE = {"--device", "--output_dir", "--resume"}  # of the machine and its folders
SMALL = {
    "golden_small": {"patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 6, "num_classes": NUM_CLASSES, "img_size": 32},
    "golden_nano": {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 6, "num_classes": NUM_CLASSES, "img_size": 32},
}


@dataclass
class RecordedModuleCfg(ModuleCfg):
    """A model of the record with the record's weights."""

    recorded: str = "golden_small"  # golden_small, golden_nano or deit_small_patch16_224

    def untouched(self) -> ModuleCfg:
        """The same model as a user's configuration builds it."""
        sizes = SMALL.get(self.recorded, {})
        return ModuleCfg(drop_path_rate=self.drop_path_rate, class_token_tail=self.class_token_tail, **sizes)  # pyright: ignore[reportArgumentType]

    def build(self) -> VisionTransformer:
        """Draws nothing: the record's runs start from the bare seed."""
        with preserve_random_state():
            model = self.untouched().build()
        load_whole(model, convert_fused_qkv_to_split(formula_weights(self.recorded)))
        return model


def experiment_of(command: Sequence[str], *, output_root: Path) -> VitTpExp:
    """The experiment that does what the official `main.py` does with these arguments."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    for flag, (kind, _) in KEYS.items():
        parser.add_argument(flag, dest=flag, type=kind)
    for flag in WITHOUT_MEANING_HERE:
        parser.add_argument(flag)
    parser.add_argument("--no-pin-mem", action="store_true")
    parser.add_argument("--no-repeated-aug", action="store_true")
    options = vars(parser.parse_args(command))
    experiment = VitTpExp(module_cfg=RecordedModuleCfg(num_classes=NUM_CLASSES), output_root=str(output_root))
    for flag, (_, keys) in KEYS.items():
        for key in keys if flag in options else []:
            section, _, name = key.rpartition(".")
            setattr(getattr(experiment, section) if section else experiment, name, options[flag])
    data = experiment.dataloader_cfg
    data.val_batch_size_per_device = int(1.5 * data.train_batch_size_per_device)  # as the official main.py
    data.repeated_aug = "no_repeated_aug" not in options
    return experiment


@contextlib.contextmanager
def recorded_world() -> Iterator[None]:
    """Where the experiment looks for folders of images it finds the record's tensors, and drop-path draws the recorded stream."""

    def images_of(split: str, *_: Any, **__: Any) -> RecordedImages:
        return RecordedImages(split)

    with (
        mock.patch.object(loaders, "files_of", lambda folder, _: folder.name),
        mock.patch.object(loaders, "Images", images_of),
        contextlib.ExitStack() as stack,
    ):
        if not draws_recorded_bernoulli_numbers():
            stack.enter_context(mock.patch.object(torch.Tensor, "bernoulli_", _portable_bernoulli))
        yield


@functools.cache
def draws_recorded_bernoulli_numbers() -> bool:
    """Whether this CPU draws Bernoulli numbers as the recorded one did. Some builds of torch use another stream on Intel."""
    with preserve_random_state():
        torch.manual_seed(0)
        own = torch.empty(64).bernoulli_(0.5)
        torch.manual_seed(0)
        return torch.equal(own, _portable_bernoulli(torch.empty(64), 0.5))


def _portable_bernoulli(tensor: Tensor, p: float) -> Tensor:
    return tensor.copy_(torch.rand(tensor.shape, dtype=torch.float64) < p)
