"""The data set over files in class folders and over members of shards alike: bytes, cache, decoding, transform."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import MAX_PIXELS, decode_rgb
from tinyexp.data.file_bytes import CachedBytes, ImageFiles
from tinyexp.errors import DataError


class Images(Dataset):
    """The images of one split as (transformed RGB image, class number).

    Bytes come from `cache` where it has them, verbatim; an image decodes alike from either place. With `smallest_side` a JPEG
    may be decoded at a part of its size (`decoding.decode_rgb`).

    Raises: on access UnreadableImage for an image that cannot be read or decoded, and DataError for one that the transform
    refuses, each with its name.
    """

    def __init__(
        self,
        files: ImageFiles,
        transform: Callable[..., Any] | None,
        *,
        cache: ByteCache | None = None,
        max_pixels: int = MAX_PIXELS,
        smallest_side: int | None = None,
    ) -> None:
        self.files = files
        self.classes = files.classes
        self.transform = transform
        self.max_pixels = max_pixels
        self.smallest_side = smallest_side
        self._cached = CachedBytes(files, cache) if cache is not None else None
        self._batch: _Batch | None = None

    def __len__(self) -> int:
        return len(self.files.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self._batch is None:
            return self.__getitems__([index])[0]
        image, target = self._image(index, self._batch), int(self.files.targets[index])
        if self.transform is None:
            return image, target
        try:
            return self.transform(image), target
        except DataError as error:
            raise DataError(f"{self.files.name(index)}: {error}") from error

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """The samples of a batch, with one request to the cache. torch's loaders call it."""
        with self.ahead(indices):
            return [self[index] for index in indices]

    @contextlib.contextmanager
    def ahead(self, indices: Sequence[int]) -> Iterator[None]:
        """Within the block, take these images from one look into the cache; after it, what was read from disk is kept there."""
        self._batch = _Batch(self._cached.look_up(indices) if self._cached is not None else {})
        try:
            yield
            if self._cached is not None and self._batch.read:
                self._cached.keep(self._batch.read)
        finally:
            self._batch = None

    def require_readable(self, index: int) -> None:
        """Read the image from disk and decode it, nothing more. Raises: UnreadableImage."""
        self._decode(index, self.files.read(index)[0])

    def _image(self, index: int, batch: "_Batch") -> Image.Image:
        # with repeated augmentation a batch has an image several times in a row; transforms leave their input as it is
        if batch.last is None or batch.last[0] != index:
            batch.last = index, self._decoded(index, batch)
        return batch.last[1]

    def _decoded(self, index: int, batch: "_Batch") -> Image.Image:
        if self._cached is None:
            return self._decode(index, self.files.read(index)[0])
        if index in batch.looked_up:
            return self._decode(index, batch.looked_up[index])
        data = self._cached.read(index)
        image = self._decode(index, data)
        batch.read[index] = data  # after decoding: an unreadable or empty file is never kept
        return image

    def _decode(self, index: int, data: bytes) -> Image.Image:
        name = self.files.name(index)
        return decode_rgb(data, path=name, max_pixels=self.max_pixels, smallest_side=self.smallest_side)


@dataclass
class _Batch:
    looked_up: dict[int, bytes]  # from the cache
    read: dict[int, bytes] = field(default_factory=dict)  # from disk
    last: tuple[int, Image.Image] | None = None  # that was decoded
