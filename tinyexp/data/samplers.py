"""Which images a replica reads, and in which order. A replica is a process, or a group, that reads images of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from torch.utils.data import DistributedSampler, Sampler

from tinyexp.process import Axis

ROUNDING = 256  # DeiT samplers.py @ 7e160fe4 cuts an epoch down to a multiple of this many images


class RepeatedAugSampler(Sampler[int]):
    """Training indices of one replica, each image repeated so that its copies get different augmentations.

    The rule of DeiT samplers.py @ 7e160fe4: one shuffled order for all replicas, seeded with the epoch alone; every
    index `num_repeats` times in a row; the list padded from its start to a multiple of the replicas; replica r takes
    the positions r, r + size, ... and keeps the first floor(length // 256 * 256 / size) of them, so that an epoch
    shows about a third of the images three times.

    Below 256 images that rule keeps nothing. Here floor(length / size) are kept instead (a listed deviation).
    """

    def __init__(self, length: int, replica: Axis, num_repeats: int = 3, *, shuffle: bool = True) -> None:
        self.length = length
        self.replica = replica
        self.num_repeats = num_repeats
        self.shuffle = shuffle
        self.epoch = 0
        self.num_selected = (length // ROUNDING * ROUNDING or length) // replica.size

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration. Every replica must get the same number."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self.length)
        if self.shuffle:
            order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch))
        # The positions of the repeated, padded list that this replica keeps, without building that list:
        # ImageNet's has 3.8 million entries, of which a replica of 8 needs 160 thousand.
        positions = self.replica.rank + self.replica.size * torch.arange(self.num_selected)
        repeated = self.length * self.num_repeats
        return iter(order[positions % repeated // self.num_repeats].tolist())

    def __len__(self) -> int:
        return self.num_selected


@dataclass(frozen=True, slots=True)
class SampleKey:
    """What a training loader asks its data set for."""

    index: int  # of the image in the data set
    seed: int  # of its augmentation, from 0 to 2**64 - 1


class EpochOrder(Sampler[SampleKey]):
    """One replica's epoch from any of its samples on, each with a seed of its own.

    The seed follows from the run's seed, the epoch and the sample's place in the order that all replicas share: position j of
    replica r is place r + size * j. So an image is augmented alike whatever process decodes it, by any number of loader
    workers, after a resume in mid-epoch, and on a mesh with another number of replicas.
    """

    def __init__(self, indices: "RepeatedAugSampler | DistributedSampler", replica: Axis, *, seed: int) -> None:
        self.indices = indices
        self.replica = replica
        self.seed = seed
        self.first = 0

    def set_epoch(self, epoch: int, *, first: int = 0) -> None:
        """Choose the order of the next iterations, which leave out the first samples. All replicas need the same numbers."""
        self.indices.set_epoch(epoch)
        self.first = first

    def __iter__(self) -> Iterator[SampleKey]:
        for position, index in enumerate(self.indices):
            if position >= self.first:
                place = self.replica.rank + self.replica.size * position
                yield SampleKey(index, sample_seed(self.seed, self.indices.epoch, place))

    def __len__(self) -> int:
        return len(self.indices) - self.first


def sample_seed(seed: int, epoch: int, place: int) -> int:
    """A 64-bit seed that differs, for all that matters, between any two samples of any two runs."""
    return int(numpy.random.SeedSequence((seed % 2**64, epoch, place)).generate_state(1, numpy.uint64)[0])


class ExactSampler(Sampler[int]):
    """Evaluation indices of one replica: r, r + size, r + 2 size, ... Over the replicas every image comes exactly once.

    Where the replicas do not divide the images the first ones have one image more, and a replica may have none. Ranks
    that share collectives must still take equal steps: all of them run `num_batches` steps of `padded_batch_size`
    images, of which their own come first (`batches.PaddedBatches` does that).
    """

    def __init__(self, length: int, replica: Axis) -> None:
        self.length = length
        self.replica = replica
        self.rows_in_largest_replica = -(-length // replica.size)  # replica 0 is never smaller than another

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.replica.rank, self.length, self.replica.size))

    def __len__(self) -> int:
        return len(range(self.replica.rank, self.length, self.replica.size))

    def num_batches(self, batch_size: int) -> int:
        """Steps of an evaluation, the same on all replicas."""
        return -(-self.rows_in_largest_replica // batch_size)

    def padded_batch_size(self, step: int, batch_size: int) -> int:
        """Images that replica 0 has in `step`; the other replicas have as many or one fewer."""
        return min(batch_size, self.rows_in_largest_replica - step * batch_size)
