"""What `dataloader_cfg.on_bad_image=skip` does with images that cannot be read or decoded, and the record of them."""

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from tinyexp.data.decoding import UnreadableImage
from tinyexp.data.images import Images
from tinyexp.errors import DataError

LONGEST_ROW = 10  # of unreadable files, beyond which the disk is the likelier cause
MOST_MESSAGES = 10  # of a rank; the record names all files
LONGEST_REREADING = 10  # seconds, to tell reasons
ALWAYS_ALLOWED = 10  # unreadable images of a split, however small it is

log = logging.getLogger("tinyexp")


class BadImages:
    """Which images of a data set could not be read, in memory that a rank shares with its loader workers."""

    def __init__(self, images: Images, max_fraction: float) -> None:
        self._images = images
        self._reasons: dict[int, str] = {}
        self.max_fraction = max_fraction
        self.allowed = max(ALWAYS_ALLOWED, int(max_fraction * len(images)))  # more of them, over all ranks, stop the run
        self.flags = torch.zeros(len(images), dtype=torch.uint8).share_memory_()  # 1 for each that could not be read

    def note(self, index: int, error: UnreadableImage) -> None:
        if not self.flags[index]:
            self.flags[index] = 1
            if self.count() <= MOST_MESSAGES:
                log.warning("%s (dataloader_cfg.on_bad_image=skip)", error)

    def count(self) -> int:
        """Of this rank."""
        return int(self.flags.sum())

    def names(self, flags: Tensor | None = None) -> list[str]:
        """The images that could not be read: by this rank, or those that `flags`, summed over ranks, point out."""
        found = (self.flags if flags is None else flags).nonzero().flatten()
        return [self._images.files.name(int(index)) for index in found]

    def reasons(self) -> dict[str, str]:
        """Why each image could not be read by this rank, by its name. Each is read once more for it: workers leave only flags.

        No reading starts later than LONGEST_REREADING seconds after the first: other ranks may wait for this one.
        """
        deadline = time.monotonic() + LONGEST_REREADING
        for index in self.flags.nonzero().flatten().tolist():
            if index not in self._reasons:
                in_time = time.monotonic() < deadline
                self._reasons[index] = (
                    self._reason(index) if in_time else "it could not be read, and was not read again for want of time"
                )
        return {self._images.files.name(index): reason for index, reason in self._reasons.items()}

    def _reason(self, index: int) -> str:
        try:
            self._images.require_readable(index)
        except DataError as error:  # a shard that was changed, too; the other ranks wait
            return str(error).removeprefix(f"{self._images.files.name(index)}: ")
        return "it could not be read when it was needed, and can be read now"


class Skipping(Dataset):
    """Images of which unreadable ones are noted and passed over. A subclass says what takes their place."""

    def __init__(self, images: Images, max_bad_fraction: float) -> None:
        self.images = images
        self.classes = images.classes
        self.bad = BadImages(images, max_bad_fraction)

    def __len__(self) -> int:
        return len(self.images)

    def ahead(self, indices: Sequence[int]) -> AbstractContextManager[None]:
        """As of the images."""
        return self.images.ahead(indices)


class Replaced(Skipping):
    """For training: the next readable file stands in, the same one on every rank and in every epoch."""

    def __getitem__(self, index: int) -> Any:
        """Raises: DataError where LONGEST_ROW files in a row cannot be read."""
        last = ""
        for step in range(LONGEST_ROW):
            try:
                return self.images[(index + step) % len(self.images)]
            except UnreadableImage as error:
                self.bad.note((index + step) % len(self.images), error)
                last = str(error)
        raise DataError(f"{LONGEST_ROW} files in a row cannot be read; is the disk there? The last one: {last}")

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        with self.ahead(indices):
            return [self[index] for index in indices]


class LeftOut(Skipping):
    """For evaluation: nothing stands in, and a batch has fewer samples."""

    def __getitem__(self, index: int) -> Any:
        return next(iter(self.__getitems__([index])), None)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = []
        with self.ahead(indices):
            for index in indices:
                try:
                    samples.append(self.images[index])
                except UnreadableImage as error:
                    self.bad.note(index, error)
        return samples


def collate_readable(samples: list[Any], *, input_size: int) -> tuple[Tensor, Tensor]:
    """The batch of what could be read: images and classes, maybe none."""
    if not samples:
        return no_images(input_size)
    images, classes = default_collate(samples)
    return images, classes


def no_images(input_size: int) -> tuple[Tensor, Tensor]:
    """A batch of 0 images and classes."""
    return torch.empty(0, 3, input_size, input_size), torch.empty(0, dtype=torch.int64)
