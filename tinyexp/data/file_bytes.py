"""The bytes of a data set's images: from a cache where it has them, else from disk."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy
import torch

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import UnreadableImage

LARGEST_FILE_BYTES = 2**29
UNKNOWN = -1
Stamp = tuple[int, int]  # size in bytes, and time of modification in nanoseconds
Found = TypeVar("Found")


class ImageFiles(Protocol):
    """The encoded images of one split, by position: files in class folders, or members of shards."""

    root: str  # absolute path of the split's folder
    classes: list[str]  # names, in the order of the class numbers

    @property
    def targets(self) -> Sequence[int] | numpy.ndarray:
        """The class number of each image."""
        ...

    def name(self, position: int) -> str:
        """What messages, records and cache keys call the image: it starts with `root` and a slash."""
        ...

    def names(self, positions: range) -> bytes:
        """The names of neighbours below `root`, in shards those of the members alone, with a zero byte after each."""
        ...

    def stamp(self, position: int) -> Stamp:
        """Of the image as it is now, without reading it. Raises: OSError."""
        ...

    def read(self, position: int) -> tuple[bytes, Stamp]:
        """The encoded image, and what it was when it was read. Raises: UnreadableImage that starts with the name."""
        ...


def read_file(path: str) -> tuple[bytes, Stamp]:
    """The bytes of a regular file, and what it was when they were read. A read error is tried once more.

    Raises: UnreadableImage that starts with the path.
    """
    return tried_twice(lambda: _read(path), name=path)


def tried_twice(read: Callable[[], Found], *, name: str) -> Found:
    """What `read` returns, which is called once more after a read error (EIO). Raises: UnreadableImage."""
    for is_last in (False, True):
        try:
            return read()
        except OSError as error:
            if is_last or error.errno != errno.EIO:
                raise UnreadableImage(f"{name}: the file cannot be read: {error.strerror or error}") from error
    raise AssertionError


def _read(path: str) -> tuple[bytes, Stamp]:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # to open a pipe would wait for a writer
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableImage(f"{path}: the file cannot be read: it is no regular file; remove it")
        if found.st_size > LARGEST_FILE_BYTES:
            raise UnreadableImage(f"{path}: the file cannot be read: {found.st_size:,} bytes are no image; remove it")
        return file.read(), (found.st_size, found.st_mtime_ns)


class CachedBytes:
    """Images by their position, with their bytes in a cache.

    A key is made of the root, the name below it, size and time of modification, so that a changed file, or another set at
    the same place, has other keys. Size and time are asked for once in a run, by whichever process of this rank comes first;
    then a hit needs no file system at all.
    """

    def __init__(self, files: ImageFiles, cache: ByteCache) -> None:
        self._start = len(files.root) + 1  # of the name below the root
        self._fingerprint = hashlib.sha256(os.fsencode(files.root)).hexdigest()[:16]
        self._files = files
        self._cache = cache
        # size and time of each image, in memory that the loader workers share
        self._stamps = torch.full((len(files.targets), 2), UNKNOWN, dtype=torch.int64).share_memory_()

    def look_up(self, positions: Sequence[int]) -> dict[int, bytes]:
        """The bytes of those images that the cache has, with one request for all of them."""
        keys = {position: key for position in dict.fromkeys(positions) if (key := self._key(position))}
        found = self._cache.get_many(list(keys.values()))
        return {position: value for position, value in zip(keys, found, strict=True) if value}

    def read(self, position: int) -> bytes:
        """From disk. Raises: UnreadableImage."""
        data, stamp = self._files.read(position)
        self._stamps[position] = torch.tensor(stamp)
        return data

    def keep(self, values: Mapping[int, bytes]) -> None:
        """Put bytes that `read` has returned into the cache."""
        self._cache.put_many({key: value for position, value in values.items() if (key := self._key(position))})

    def _key(self, position: int) -> str:
        """Empty where the image cannot be found; reading it will say why."""
        size, modified = self._stamps[position].tolist()
        if size == UNKNOWN:
            try:
                size, modified = stamp = self._files.stamp(position)
            except OSError:
                return ""
            self._stamps[position] = torch.tensor(stamp)
        return f"{self._fingerprint}:{self._files.name(position)[self._start :]}:{size}:{modified}"
