"""A file that grows record by record, each of them there whole or not at all."""

import errno
import os
from pathlib import Path


class GrowingFile:
    """For a `with` block, or `close` it. Other processes can read at once what is written."""

    def __init__(self, path: Path, *, end: int | None = None) -> None:
        """The file is made where it does not exist. What lies behind its first `end` bytes is dropped. Raises: OSError."""
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115, open until `close`
        self._end = self._file.seek(0, os.SEEK_END) if end is None else end
        self._file.truncate(self._end)

    def write(self, record: bytes, *, sync: bool = False) -> None:
        """Append the record; where `sync` says so, wait until it is on the disk.

        Raises: OSError where it cannot be written; then nothing of it is in the file.
        """
        try:
            if self._file.write(record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if sync:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(record)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "GrowingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
