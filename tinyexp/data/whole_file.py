"""Files that are there whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at `path` at once, whoever else writes the same; readable by everybody. Raises: OSError.

    After a power failure, too, it is the old one or the new one.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sync_folder(path: Path) -> None:
    """Put on disk which names the folder holds, where its file system knows how to. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync files alone
            raise
    finally:
        os.close(descriptor)
