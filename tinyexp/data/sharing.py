"""One replica's batches, read by a group of ranks together: each decodes rows of its own, and all of them get the whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from tinyexp.process import Axis

NO_CLASS = -1  # of a row that only fills up


@dataclass(frozen=True)
class Share:
    """This rank's part of a group's batches. A group of one reads everything and gathers nothing."""

    axis: Axis = field(default_factory=Axis)  # this rank in the group
    gather: Callable[[Tensor], Tensor] | None = None  # (n, ...) of each rank -> (size * n, ...) in rank order; all must call it

    def rows(self, batch_size: int) -> range:
        """The rows of a batch that this rank reads: all where the batch has fewer than the group has ranks."""
        if not self._is_shared(batch_size):
            return range(batch_size)
        rank, size = self.axis.rank, self.axis.size
        return range(rank * batch_size // size, (rank + 1) * batch_size // size)

    def sampler(self, sampler: Sampler, batch_size: int, *, drop_last: bool) -> Sampler:
        """Of the batches that a replica's sampler makes, what this rank reads, batch by batch."""
        if not self._is_shared(batch_size):
            return sampler
        return OwnRows(sampler, self.rows(batch_size), batch_size, drop_last=drop_last)

    def join(self, images: Tensor, classes: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """The images and classes that all ranks of the group have read, in the order of the batch. Every rank must call it.

        Each may give fewer than its rows, as at the end of a set, or none.
        """
        if not self._is_shared(batch_size):
            return images, classes
        assert self.gather is not None
        missing = -(-batch_size // self.axis.size) - len(classes)  # to the largest share of the group
        if missing:
            images = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
            classes = torch.cat([classes, classes.new_full((missing,), NO_CLASS)])
        images, classes = self.gather(images), self.gather(classes)
        was_read = classes != NO_CLASS
        return (images, classes) if was_read.all() else (images[was_read], classes[was_read])

    def _is_shared(self, batch_size: int) -> bool:
        return 1 < self.axis.size <= batch_size


class OwnRows(Sampler[Any]):
    """Of each batch that a sampler makes, some rows; without an incomplete last batch where `drop_last` says so."""

    def __init__(self, sampler: Sampler, rows: range, batch_size: int, *, drop_last: bool) -> None:
        self.sampler = sampler
        self.rows = rows
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        end = self._num_samples
        return (each for place, each in enumerate(self.sampler) if place < end and place % self.batch_size in self.rows)

    def __len__(self) -> int:
        batches, rest = divmod(self._num_samples, self.batch_size)
        return batches * len(self.rows) + len(range(self.rows.start, min(self.rows.stop, rest)))

    @property
    def _num_samples(self) -> int:
        length = len(self.sampler)  # pyright: ignore[reportArgumentType]  torch does not promise it of every sampler
        return length // self.batch_size * self.batch_size if self.drop_last else length
