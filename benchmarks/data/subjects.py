"""The loaders that are compared, each a function from a folder to a loader whose every pass is one epoch."""

import builtins
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder as TorchvisionFolder

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.transforms import build_train_transform
from tinyexp.process import Axis

BATCH, WORKERS = 32, 2
STAT_S, OPEN_S, BYTES_PER_S = 0.001, 0.030, 20e6  # of the throttled disk, for each loader process

TRANSFORMS = {
    "recipe": {},  # DeiT's: random resized crop, flip, RandAugment, random erasing
    "light": {"auto_augment": "", "color_jitter": 0.0, "reprob": 0.0, "train_interpolation": "bilinear"},
}


def write_set(root: Path, count: int, size: tuple[int, int] = (500, 375)) -> int:
    """Photographs' size and weight without a photograph: JPEGs of coloured noise, made at 500 x 375. Returns their mean bytes."""
    random = np.random.RandomState(0)
    for index in range(count):
        coarse = Image.fromarray(random.randint(0, 256, (60, 80, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        noise = random.randint(-22, 23, (375, 500, 3))
        folder = root / "train" / f"c{index % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.BICUBIC)
        picture.save(folder / f"{index:05}.JPEG", quality=88)
    return sum(path.stat().st_size for path in root.glob("train/*/*")) // count


def throttle(folder: Path) -> None:
    """From now on, in this process and those it forks, files below the folder are slow: what asks, opens and reads them waits."""
    prefix = f"{folder}/"
    stat, open_descriptor, open_file = os.stat, os.open, builtins.open

    def is_slow(path: object) -> bool:
        return isinstance(path, str) and path.startswith(prefix)

    def slow_stat(path, *arguments, **options):
        if is_slow(path):
            time.sleep(STAT_S)
        return stat(path, *arguments, **options)

    def wait_for_bytes(path: str) -> None:
        time.sleep(OPEN_S + stat(path).st_size / BYTES_PER_S)

    def slow_open(path, *arguments, **options):
        if is_slow(path):
            wait_for_bytes(path)
        return open_descriptor(path, *arguments, **options)

    def slow_open_file(path, *arguments, **options):
        if is_slow(path):
            wait_for_bytes(path)
        return open_file(path, *arguments, **options)

    os.stat, os.open, builtins.open = slow_stat, slow_open, slow_open_file


def cfg_of(root: Path, transform: str) -> DataLoaderCfg:
    values = TRANSFORMS[transform]
    batches = {"train_batch_size_per_device": BATCH, "num_workers": WORKERS, "repeated_aug": False}
    return DataLoaderCfg(data_root=str(root), **batches, **values)


def ours(root: Path, transform: str, cache: ByteCache | None = None) -> Iterable:
    return cfg_of(root, transform).build_train(Axis(), num_classes=4, seed=0, device_type="cpu", cache=cache)


def torchvision_loader(root: Path, transform: str) -> Iterable:
    """What torch's tutorials write."""
    dataset = TorchvisionFolder(str(root / "train"), build_train_transform(cfg_of(root, transform)))
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, drop_last=True)


def timm_loader(root: Path, transform: str) -> Iterable:
    """timm's reader and loader, without the prefetching that needs a GPU."""
    from timm.data.dataset import ImageDataset
    from timm.data.dataset_factory import create_dataset
    from timm.data.loader import create_loader

    dataset = create_dataset("", root=str(root), split="train")
    assert isinstance(dataset, ImageDataset)
    loader = create_loader(
        dataset, (3, 224, 224), BATCH, is_training=True, num_workers=WORKERS, use_prefetcher=False, persistent_workers=True
    )
    dataset.transform = build_train_transform(cfg_of(root, transform))  # in place of the one that create_loader has put there
    return loader


LOADERS: dict[str, Callable[[Path, str], Iterable]] = {"torchvision": torchvision_loader, "timm": timm_loader, "ours": ours}
