"""Batches of one replica: the loaders, and evaluation batches of equal sizes on all replicas."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tinyexp.data.bad_images import BadImages, Skipping, no_images
from tinyexp.data.samplers import EpochOrder, ExactSampler
from tinyexp.data.seeded import SeededImages
from tinyexp.errors import DataError


class ImageLoader(DataLoader):
    """A DataLoader whose workers report an unreadable image as the main process does: one message, no traceback in it."""

    def __init__(self, dataset: Dataset, *, input_size: int, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.input_size = input_size

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  torch promises a private class
        return self._plain(super().__iter__())  # the iterator starts here: workers run, one int64 is drawn

    @property
    def bad_images(self) -> BadImages | None:
        """The record of unreadable files; None where they stop the run, and for a set that has no files."""
        images = self.dataset.images if isinstance(self.dataset, SeededImages) else self.dataset
        return images.bad if isinstance(images, Skipping) else None

    def _plain(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches. torch 2.14 wraps a worker's error in the text of its traceback; a DataError loses it again."""
        try:
            yield from batches
            return
        except DataError as error:
            raised_as = f"{type(error).__module__}.{type(error).__qualname__}: "  # the traceback ends and the message starts
            message = str(error).rpartition(raised_as)[2].strip()
            error.__traceback__ = None
        # With its last references gone, here, in that traceback and in the loader of persistent workers, the iterator stops its
        # workers at once. The garbage collector would find it later, and then wait 5 s for each worker.
        self._iterator = None
        del batches
        raise DataError(message)


class TrainLoader(ImageLoader):
    """The training batches of one replica, epoch by epoch."""

    sampler: EpochOrder  # pyright: ignore[reportIncompatibleVariableOverride]  torch promises no particular one

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  as above
        if self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_()  # which workers that stay (torch 2.14.1) no longer draw
        return super().__iter__()

    def start_epoch(self, epoch: int, *, first_batch: int = 0) -> None:
        """Choose what the next iteration goes through: an epoch, or the rest of it. Every replica needs the same numbers."""
        assert self.batch_size
        self.sampler.set_epoch(epoch, first=first_batch * self.batch_size)

    @property
    def num_images(self) -> int:
        """Of the data set."""
        return len(self.dataset)  # pyright: ignore[reportArgumentType]

    @property
    def classes(self) -> list[str]:
        """Names of the class folders, in the order of the class numbers; none where the images come from no folder."""
        assert isinstance(self.dataset, SeededImages)
        return list(getattr(self.dataset.images, "classes", []))

    @property
    def batches_in_epoch(self) -> int:
        """Of a whole epoch, wherever the next iteration starts."""
        assert self.batch_size
        return len(self.sampler.indices) // self.batch_size


class PaddedBatches:
    """Evaluation batches in equal numbers and sizes on all replicas: images, and the classes of those that count.

    Images are (rows, 3, size, size), of which the first `len(classes)` are this replica's and the rest zeros; a replica may
    have none. So every rank can enter the same collectives in every step, and

        for images, classes in PaddedBatches(loader):
            logits = model(images)[: len(classes)]

    counts each image once. Every rank must go through all batches.
    """

    def __init__(self, loader: ImageLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        sampler = self.loader.sampler
        return sampler.num_batches(self._batch_size) if isinstance(sampler, ExactSampler) else len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = iter(self.loader)
        for step in range(len(self)):
            images, classes = next(batches, None) or no_images(self.loader.input_size)
            missing = self._rows(step) - len(classes)  # of other replicas, or files that could not be read
            if missing:
                images = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
            yield images, classes

    def _rows(self, step: int) -> int:
        sampler = self.loader.sampler
        if isinstance(sampler, ExactSampler):
            return sampler.padded_batch_size(step, self._batch_size)
        # torch's DistributedSampler makes the replicas equal by itself
        return min(self._batch_size, len(sampler) - step * self._batch_size)  # pyright: ignore[reportArgumentType]

    @property
    def _batch_size(self) -> int:
        assert self.loader.batch_size
        return self.loader.batch_size
