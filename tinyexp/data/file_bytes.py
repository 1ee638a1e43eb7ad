"""The bytes of a data set's files: from a cache where it has them, else from disk."""

import errno
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence

import torch

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import UnreadableImage

LARGEST_FILE_BYTES = 2**29
UNKNOWN = -1


def read_file(path: str) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file, and what it was when they were read. A read error is tried once more.

    Raises: UnreadableImage that starts with the path.
    """
    for is_last in (False, True):
        try:
            return _read(path)
        except OSError as error:
            if is_last or error.errno != errno.EIO:
                raise UnreadableImage(f"{path}: the file cannot be read: {error.strerror or error}") from error
    raise AssertionError


def _read(path: str) -> tuple[bytes, os.stat_result]:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # to open a pipe would wait for a writer
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableImage(f"{path}: the file cannot be read: it is no regular file; remove it")
        if found.st_size > LARGEST_FILE_BYTES:
            raise UnreadableImage(f"{path}: the file cannot be read: {found.st_size:,} bytes are no image; remove it")
        return file.read(), found


class CachedFiles:
    """Files by their position in a list, with their bytes in a cache.

    A key is made of the root, the path below it, size and time of modification, so that a changed file, or another set at
    the same place, has other keys. Size and time are asked for once in a run, by whichever process of this rank comes first;
    then a hit needs no file system at all.
    """

    def __init__(self, root: str, paths: Sequence[str], cache: ByteCache) -> None:
        self._start = len(root) + 1  # of the path below the root
        self._fingerprint = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self._paths = paths
        self._cache = cache
        # size and time in nanoseconds of each file, in memory that the loader workers share
        self._stamps = torch.full((len(paths), 2), UNKNOWN, dtype=torch.int64).share_memory_()

    def look_up(self, positions: Sequence[int]) -> dict[int, bytes]:
        """The bytes of those files that the cache has, with one request for all of them."""
        keys = {position: key for position in dict.fromkeys(positions) if (key := self._key(position))}
        found = self._cache.get_many(list(keys.values()))
        return {position: value for position, value in zip(keys, found, strict=True) if value}

    def read(self, position: int) -> bytes:
        """From disk. Raises: UnreadableImage."""
        data, found = read_file(self._paths[position])
        self._stamp(position, found)
        return data

    def keep(self, values: Mapping[int, bytes]) -> None:
        """Put bytes that `read` has returned into the cache."""
        self._cache.put_many({key: value for position, value in values.items() if (key := self._key(position))})

    def _key(self, position: int) -> str:
        """Empty where the file cannot be found; reading it will say why."""
        size, modified = self._stamps[position].tolist()
        if size == UNKNOWN:
            try:
                size, modified = self._stamp(position, os.stat(self._paths[position]))
            except OSError:
                return ""
        return f"{self._fingerprint}:{self._paths[position][self._start :]}:{size}:{modified}"

    def _stamp(self, position: int, found: os.stat_result) -> tuple[int, int]:
        self._stamps[position] = torch.tensor([found.st_size, found.st_mtime_ns])
        return found.st_size, found.st_mtime_ns
