"""A data set whose augmentation follows from the sample alone."""

import contextlib
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from tinyexp.data.bad_images import Skipping
from tinyexp.data.images import Images
from tinyexp.data.samplers import SampleKey
from tinyexp.process import preserve_random_state, seed_cpu_generators


class SeededImages(Dataset):
    """The samples of a data set by `SampleKey`. Each draws from the three generators of its process, seeded for it alone.

    In the process that trains, whose generators serve mixup and drop-path too, they are left as they were.
    """

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __getitem__(self, key: SampleKey) -> Any:
        trains_too = get_worker_info() is None
        with preserve_random_state() if trains_too else contextlib.nullcontext():
            seed_cpu_generators(key.seed)
            return self.images[key.index]

    def __getitems__(self, keys: Sequence[SampleKey]) -> list[Any]:
        """A batch. torch's loaders call it."""
        images, indices = self.images, [key.index for key in keys]
        with images.ahead(indices) if isinstance(images, Images | Skipping) else contextlib.nullcontext():
            return [self[key] for key in keys]

    def __len__(self) -> int:
        return len(self.images)  # pyright: ignore[reportArgumentType]
