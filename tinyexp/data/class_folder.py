"""The image files in a class folder, and in folders within it."""

import contextlib
import errno
import os
from collections.abc import Iterator

from torchvision.datasets.folder import IMG_EXTENSIONS

from tinyexp.errors import DataError

EXTENSIONS = (*IMG_EXTENSIONS, ".gif")  # which files are images; the decoder goes by their content
MAY_PASS = (errno.EIO, errno.ESTALE)  # what a network file system says once and then no more


def image_paths(split_folder: str, class_name: str) -> list[str]:
    """The paths in the order of torchvision's ImageFolder: folders sorted by path, files by name. Raises: DataError."""
    found = sorted(walk_images(split_folder, class_name))
    return [f"{folder}/{name}" for folder, names in found for name in sorted(names)]


def has_image(split_folder: str, class_name: str) -> bool:
    """Whether there is any; looks no further than to the first. Raises: DataError."""
    with contextlib.suppress(OSError), os.scandir(f"{split_folder}/{class_name}") as entries:
        if any(_is_image(entry.name) and not entry.name.startswith(".") and not _is_folder(entry) for entry in entries):
            return True
    return any(names for _, names in walk_images(split_folder, class_name))


def walk_images(split_folder: str, class_name: str) -> Iterator[tuple[str, list[str]]]:
    """Each folder, and the names of its images. Links are followed; hidden files and folders are passed over.

    torchvision walks with `os.walk`, which passes over a folder that cannot be listed and follows a link in a circle until
    its path is too long: then a set has fewer or more images than it should, without a word.

    Raises: DataError for either.
    """
    waiting = [(f"{split_folder}/{class_name}", {_identity(split_folder): split_folder})]
    while waiting:
        folder, above = waiting.pop()
        identity = _identity(folder)
        if identity in above:
            raise DataError(f"{folder} leads back to {above[identity]}, so that its images would come again and again; remove it")
        names = []
        for entry in _entries(folder):
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                waiting.append((entry.path, {**above, identity: folder}))
            elif _is_image(entry.name):
                names.append(entry.name)
        yield folder, names


def listed(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """What the folder holds, tried once more after an error that may pass. Raises: OSError."""
    for is_last in (False, True):
        try:
            with os.scandir(os.fspath(folder)) as entries:
                return list(entries)
        except OSError as error:
            if is_last or error.errno not in MAY_PASS:
                raise
    raise AssertionError


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return listed(folder)
    except OSError as error:
        raise _unlistable(folder, error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if _is_image(entry.name):
            return False  # a link to what cannot be reached, which says why when it is read
        raise _unlistable(entry.path, error) from error


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _identity(folder: str) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError as error:
        raise _unlistable(folder, error) from error
    return found.st_dev, found.st_ino


def _unlistable(folder: str, error: OSError) -> DataError:
    reason = error.strerror or str(error)
    return DataError(f"{folder} cannot be listed: {reason}; its images would be missing: give this user access, or remove it")
