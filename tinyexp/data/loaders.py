"""Loaders of one replica: data set, transform and sampler put together, and refused early where they cannot work."""

import functools
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import DistributedSampler

from tinyexp.data.bad_images import LeftOut, Replaced, collate_readable
from tinyexp.data.batches import ImageLoader, TrainLoader
from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import MAX_PIXELS, PILLOW_LIMIT
from tinyexp.data.fake import FakeImages
from tinyexp.data.images import Images
from tinyexp.data.samplers import EpochOrder, ExactSampler, RepeatedAugSampler
from tinyexp.data.seeded import SeededImages
from tinyexp.data.sharing import Share
from tinyexp.data.sources import DATA_FORMATS, files_of, root_problems
from tinyexp.data.transforms import (
    ERASE_MODES,
    INTERPOLATIONS,
    LARGEST_UNRESIZED,
    auto_augment_problem,
    build_eval_transform,
    build_train_transform,
)
from tinyexp.data.worker_process import serve_rank
from tinyexp.errors import ConfigError
from tinyexp.limits import Range, path_problem, range_problems
from tinyexp.process import Axis, Environment, available_cores

log = logging.getLogger("tinyexp")

RANGES = {
    "fake_data_len": Range(1, 10**8),
    "input_size": Range(1, 16_384),
    "train_batch_size_per_device": Range(1, 100_000),
    "val_batch_size_per_device": Range(1, 100_000),
    "num_workers": Range(0, 1024, "0 loads in the rank itself"),
    "color_jitter": Range(0, 10, "0 is off"),
    "hflip": Range(0, 1),
    "reprob": Range(0, 1, "0 is off"),
    "recount": Range(1, 1000),
    "num_repeats": Range(1, 1000),
    "max_bad_fraction": Range(0, 1),
    "max_pixels": Range(1, PILLOW_LIMIT, "Pillow decodes no larger image"),
    "eval_crop_ratio": Range(0.1, 1, "DeiT has 0.875"),
}
ON_BAD_IMAGE = ("stop", "skip")
# Shorter side of an image that fast_decode makes smaller, in input sizes: ImageNet's median image has 375 / 224 = 1.7, so that
# the smallest crop of the recipe, 8 % of the area, is enlarged no more than it is for most images.
FAST_DECODE_SIDES = 2


def default_data_root() -> str:
    return os.environ.get("IMAGENET_HOME") or "./data/imagenet/"


@dataclass
class DataLoaderCfg:
    """Where the images come from, how they are augmented, and how replicas share them. Defaults: DeiT main.py @ 7e160fe4."""

    data_root: str = field(default_factory=default_data_root)  # <root>/{train,val}/<class>/*; IMAGENET_HOME sets the default
    data_format: str = "folder"  # of data_root: folder (of class folders), or shards (WebDataset: <root>/{train,val}/*.tar)
    fake_data: bool = False  # synthetic noise images instead of data_root; no disk
    fake_data_len: int = 64  # images in each synthetic split
    input_size: int = 224  # pixels of a side; at 32 and below images are not resized; DeiT main.py --input-size
    train_batch_size_per_device: int = 256  # images of a replica in one step; DeiT README.md, 4 x 256
    val_batch_size_per_device: int = 384  # images of a replica in one evaluation step; DeiT: 1.5 x the training batch
    num_workers: int = 10  # loader processes of a rank, lowered to its share of the cores; DeiT main.py --num_workers
    on_bad_image: str = "stop"  # an unreadable file: stop the run, or skip: the next file in training, left out of an evaluation
    max_bad_fraction: float = 0.001  # skip stops the run above this share of a split's images, but not up to 10; 1: at no number
    max_pixels: int = MAX_PIXELS  # of an image, by its header; larger ones count as unreadable and are not decoded
    fast_decode: bool = False  # training JPEGs with sides of 4 x input_size or more are decoded at a half or less; not in DeiT
    pin_mem: bool = True  # page-locked batches, for copies to a GPU; no effect on CPU; DeiT main.py --pin-mem
    color_jitter: float = 0.3  # strength; without effect while auto_augment is set; DeiT main.py --color-jitter
    auto_augment: str = "rand-m9-mstd0.5-inc1"  # timm policy; "" for none; DeiT main.py --aa
    train_interpolation: str = "bicubic"  # of the random crop; a timm name, or "random"; DeiT main.py --train-interpolation
    hflip: float = 0.5  # probability of mirroring an image, 0 to 1; timm's default, which DeiT keeps; 0 for text and digits
    reprob: float = 0.25  # probability of random erasing, 0 to 1; DeiT main.py --reprob
    remode: str = "pixel"  # erased boxes get noise per "pixel", one "rand" colour, or "const" zero; DeiT main.py --remode
    recount: int = 1  # most boxes that random erasing removes from an image; DeiT main.py --recount
    repeated_aug: bool = True  # a third of the images, each num_repeats times an epoch; DeiT main.py --repeated-aug
    num_repeats: int = 3  # augmentations of an image in an epoch with repeated_aug; DeiT samplers.py
    dist_eval: bool = False  # padded evaluation, which scores some images twice; off: each once; DeiT main.py --dist-eval
    eval_crop_ratio: float = 0.875  # evaluation resizes to input_size / ratio, then crops; DeiT main.py --eval-crop-ratio

    def problems(self, *, mixup_active: bool, num_classes: int, splits: tuple[str, ...] = ("train", "val")) -> list[str]:
        """Everything about these values and the data root that cannot work, one line each; [] if all is well.

        Opens no image. An evaluation passes splits=("val",) and hears nothing about training images.
        """
        problems = self._value_problems()
        if "train" in splits:
            problems += self._train_problems(mixup_active)
        if not self.fake_data:
            unusable = path_problem("dataloader_cfg.data_root", self.data_root)
            problems += [unusable] if unusable else self._root_problems(splits, num_classes)
        return problems

    def synthetic_problems(self, *, mixup_active: bool) -> list[str]:
        """The same for a mode that trains on synthetic images, whatever `fake_data` says."""
        return self._value_problems() + self._train_problems(mixup_active)

    def build_train(
        self,
        replica: Axis,
        *,
        num_classes: int,
        seed: int,
        device_type: str,
        cache: ByteCache | None = None,
        share: Share | None = None,
    ) -> TrainLoader:
        """Training batches of one replica: float32 images (batch, 3, size, size) and int64 classes (batch,).

        Call `start_epoch` before each epoch. The last incomplete batch is dropped. The ranks of a replica may read a `share` of
        each batch; every one of them gets the whole.

        The order of the images follows from the epoch alone, as in DeiT; the augmentation of each from `seed`, the epoch and
        its place in that order. An epoch draws one int64 of torch's generator, as in DeiT, and does nothing with it.

        Raises: ConfigError if the replica has no full batch (deviation D8: DeiT would train no step), DataError.
        """
        smallest_side = FAST_DECODE_SIDES * self.input_size if self.fast_decode else None
        dataset = self._dataset("train", build_train_transform(self), num_classes, cache, smallest_side)
        num_images = len(dataset)
        if self.repeated_aug:
            sampler = RepeatedAugSampler(num_images, replica, self.num_repeats)
        else:
            sampler = DistributedSampler(dataset, replica.size, replica.rank, shuffle=True, seed=0)
        self._require_one_batch(num_images, len(sampler), replica)
        options = self._process_options(replica, device_type)
        return TrainLoader(
            SeededImages(Replaced(dataset, self.max_bad_fraction) if self._skips and isinstance(dataset, Images) else dataset),
            input_size=self.input_size,
            order=EpochOrder(sampler, replica, seed=seed),
            rows=self.train_batch_size_per_device,
            share=share,
            drop_last=True,
            persistent_workers=options["num_workers"] > 0,
            **options,
        )

    def build_val(
        self,
        replica: Axis,
        *,
        num_classes: int,
        device_type: str,
        cache: ByteCache | None = None,
        share: Share | None = None,
    ) -> ImageLoader:
        """Evaluation batches of one replica; go through `PaddedBatches` where ranks share collectives.

        Over the replicas every image comes once. With dist_eval, DeiT's padding repeats the first images to make the
        replicas equal, and the log says so.

        Raises: DataError.
        """
        dataset = self._dataset("val", build_eval_transform(self), num_classes, cache)
        num_images = len(dataset)
        if self.dist_eval:
            sampler = DistributedSampler(dataset, replica.size, replica.rank, shuffle=False)
            if replica.rank == 0 and sampler.total_size > num_images:
                log.warning(
                    "dataloader_cfg.dist_eval: %d images do not divide over %d replicas; %d are scored twice, "
                    "so the accuracy is slightly off; dataloader_cfg.dist_eval=false scores each once",
                    num_images,
                    replica.size,
                    sampler.total_size - num_images,
                )
        else:
            sampler = ExactSampler(num_images, replica)
        options = self._process_options(replica, device_type)
        if self._skips and isinstance(dataset, Images):
            dataset = LeftOut(dataset, self.max_bad_fraction)
            options["collate_fn"] = functools.partial(collate_readable, input_size=self.input_size)
        # Its workers start anew with every evaluation: kept, they would hold as much memory as those of the training.
        rows = self.val_batch_size_per_device
        return ImageLoader(dataset, input_size=self.input_size, order=sampler, rows=rows, share=share, **options)

    def _value_problems(self) -> list[str]:
        problems = list(range_problems("dataloader_cfg.", self, RANGES))
        if self.on_bad_image not in ON_BAD_IMAGE:
            problems.append(f"dataloader_cfg.on_bad_image={self.on_bad_image} is unknown; use one of {', '.join(ON_BAD_IMAGE)}")
        if self.data_format not in DATA_FORMATS:
            problems.append(f"dataloader_cfg.data_format={self.data_format} is unknown; use one of {', '.join(DATA_FORMATS)}")
        return problems

    def _train_problems(self, mixup_active: bool) -> list[str]:
        problems = []
        for key, allowed in (("remode", ERASE_MODES), ("train_interpolation", INTERPOLATIONS)):
            if getattr(self, key) not in allowed:
                problems.append(f"dataloader_cfg.{key}={getattr(self, key)} is unknown; use one of {', '.join(allowed)}")
        if reason := auto_augment_problem(self.auto_augment):
            problems.append(f"dataloader_cfg.auto_augment={self.auto_augment} is no augmentation policy: {reason}")
        if self.fast_decode and self.input_size <= LARGEST_UNRESIZED:
            problems.append(
                f"dataloader_cfg.fast_decode=true cannot work at dataloader_cfg.input_size={self.input_size}, where images "
                "are not resized; set dataloader_cfg.fast_decode=false"
            )
        batch = self.train_batch_size_per_device
        if mixup_active and batch > 0 and batch % 2:
            even = f"{batch - 1} or {batch + 1}" if batch > 1 else "2"
            problems.append(
                f"dataloader_cfg.train_batch_size_per_device={batch} is odd, but mixup and cutmix pair the images of a batch; "
                f"use {even}, or switch both off with loss_cfg.mixup=0 loss_cfg.cutmix=0"
            )
        return problems

    def _root_problems(self, splits: tuple[str, ...], num_classes: int) -> list[str]:
        if self.data_format not in DATA_FORMATS:
            return []  # said already
        return root_problems(Path(self.data_root), data_format=self.data_format, splits=splits, num_classes=num_classes)

    def _dataset(
        self, split: str, transform: Any, num_classes: int, cache: ByteCache | None, smallest_side: int | None = None
    ) -> FakeImages | Images:
        if self.fake_data:
            return FakeImages(self.fake_data_len, self.input_size, num_classes, transform)
        files = files_of(Path(self.data_root) / split, self.data_format)
        return Images(files, transform, cache=cache, max_pixels=self.max_pixels, smallest_side=smallest_side)

    @property
    def _skips(self) -> bool:
        return self.on_bad_image == "skip"

    def _require_one_batch(self, num_images: int, num_samples: int, replica: Axis) -> None:
        batch = self.train_batch_size_per_device
        if num_samples < batch:
            larger_set = "dataloader_cfg.fake_data_len" if self.fake_data else "the set at dataloader_cfg.data_root"
            fewer = f"set dataloader_cfg.train_batch_size_per_device to {num_samples} or less, " if num_samples else ""
            raise ConfigError(
                f"an epoch has no training step: {num_images} images over {replica.size} replicas give each replica "
                f"{num_samples} samples, fewer than dataloader_cfg.train_batch_size_per_device={batch}; "
                f"{fewer}use fewer replicas, or enlarge {larger_set}"
            )

    def _process_options(self, replica: Axis, device_type: str) -> dict[str, Any]:
        ranks = Environment.read().local.size
        num_workers = lower_to_cores(self.num_workers, cores=available_cores(), ranks=ranks, warn=replica.rank == 0)
        return {
            "num_workers": num_workers,
            # whatever Python's or a caller's choice: the list of files comes with the fork, and a worker's parent is its rank
            "multiprocessing_context": "fork" if num_workers else None,
            "pin_memory": self.pin_mem and device_type == "cuda",
            # also when the rank is killed; torch's own workers take 5 s to notice
            "worker_init_fn": functools.partial(serve_rank, os.getpid()),
        }


@functools.cache
def lower_to_cores(num_workers: int, *, cores: int, ranks: int, warn: bool) -> int:
    """`num_workers`, at most this rank's share of the cores, and 1. More would only take turns. One warning in a process."""
    share = max(1, cores // ranks)
    if num_workers > share and warn:
        shared = f", shared by {ranks} ranks" if ranks > 1 else ""
        log.warning("dataloader_cfg.num_workers=%d is lowered to %d: %d CPU cores%s", num_workers, share, cores, shared)
    return min(num_workers, share)
