"""Batches of one replica: the loaders, and evaluation batches of equal sizes on all replicas."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tinyexp.data.bad_images import BadImages, Skipping, no_images
from tinyexp.data.file_bytes import ImageFiles
from tinyexp.data.images import Images
from tinyexp.data.samplers import EpochOrder, ExactSampler
from tinyexp.data.seeded import SeededImages
from tinyexp.data.sharing import Share
from tinyexp.data.worker_death import LOST_LINKS, death_of_worker, tell_of_dying_workers
from tinyexp.errors import DataError, LoaderWorkerDied


class ImageLoader(DataLoader):
    """A DataLoader whose workers report an unreadable image as the main process does: one message, no traceback in it.

    It goes through this rank's `share` of the batches that the replica's sampler makes; whole ones come from `TrainLoader` and
    `PaddedBatches`.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        input_size: int,
        order: Sampler,
        rows: int,
        share: Share | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        """`order` is the replica's sampler and `rows` the size of its batches."""
        share = share or Share()
        own = share.sampler(order, rows, drop_last=drop_last)
        super().__init__(dataset, sampler=own, batch_size=len(share.rows(rows)), drop_last=drop_last, **options)
        self.input_size = input_size
        self.order = order
        self.rows = rows
        self.share = share

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  torch promises a private class
        batches = super().__iter__()  # the iterator starts here: workers run, one int64 is drawn
        if self.num_workers:
            tell_of_dying_workers()
        return self._plain(batches)

    @property
    def classes(self) -> list[str]:
        """Names of the class folders, in the order of the class numbers; none where the images come from no folder."""
        return list(getattr(self._images, "classes", []))

    @property
    def files(self) -> ImageFiles | None:
        """The files that the images are decoded from; None where there are none."""
        images = self._images.images if isinstance(self._images, Skipping) else self._images
        return images.files if isinstance(images, Images) else None

    @property
    def bad_images(self) -> BadImages | None:
        """The record of unreadable files; None where they stop the run, and for a set that has no files."""
        return self._images.bad if isinstance(self._images, Skipping) else None

    @property
    def _images(self) -> Dataset:
        return self.dataset.images if isinstance(self.dataset, SeededImages) else self.dataset

    def _plain(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches. torch 2.14 wraps a worker's error in the text of its traceback; a DataError loses it again.

        Raises: DataError, LoaderWorkerDied.
        """
        try:
            yield from batches
            return
        except DataError as error:
            raised_as = f"{type(error).__module__}.{type(error).__qualname__}: "  # the traceback ends and the message starts
            plain = DataError(str(error).rpartition(raised_as)[2].strip())
            error.__traceback__ = None
        except (RuntimeError, *LOST_LINKS, LoaderWorkerDied) as error:
            death = error if isinstance(error, LoaderWorkerDied) else death_of_worker(error)
            if not self.num_workers or death is None:
                raise
            plain = LoaderWorkerDied(*death.args)
            error.__traceback__ = None
        # With its last references gone, here, in that traceback and in the loader of persistent workers, the iterator stops its
        # workers at once. The garbage collector would find it later, and then wait 5 s for each worker.
        self._iterator = None
        del batches
        raise plain


class TrainLoader(ImageLoader):
    """The training batches of one replica, epoch by epoch."""

    order: EpochOrder

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  as above
        if self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_()  # which workers that stay (torch 2.14.1) no longer draw
        return (self.share.join(images, classes, self.rows) for images, classes in super().__iter__())

    def start_epoch(self, epoch: int, *, first_batch: int = 0) -> None:
        """Choose what the next iteration goes through: an epoch, or the rest of it. Every replica needs the same numbers."""
        self.order.set_epoch(epoch, first=first_batch * self.rows)

    @property
    def num_images(self) -> int:
        """Of the data set."""
        return len(self.dataset)  # pyright: ignore[reportArgumentType]

    @property
    def batches_in_epoch(self) -> int:
        """Of a whole epoch, wherever the next iteration starts."""
        return len(self.order.indices) // self.rows


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
        order, rows = self.loader.order, self.loader.rows
        return order.num_batches(rows) if isinstance(order, ExactSampler) else -(-self._order_length // rows)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = iter(self.loader)
        for step in range(len(self)):
            images, classes = next(batches, None) or no_images(self.loader.input_size)
            images, classes = self.loader.share.join(images, classes, self.loader.rows)
            missing = self._rows(step) - len(classes)  # of other replicas, or files that could not be read
            if missing:
                images = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
            yield images, classes

    def _rows(self, step: int) -> int:
        order, rows = self.loader.order, self.loader.rows
        if isinstance(order, ExactSampler):
            return order.padded_batch_size(step, rows)
        # torch's DistributedSampler makes the replicas equal by itself
        return min(rows, self._order_length - step * rows)

    @property
    def _order_length(self) -> int:
        return len(self.loader.order)  # pyright: ignore[reportArgumentType]  torch does not promise it of every sampler
