"""Images in class folders: what a data root must hold, and the data set that reads it."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from torchvision import datasets

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import MAX_PIXELS, decode_rgb
from tinyexp.data.file_bytes import CachedFiles, read_file
from tinyexp.errors import DataError

EXTENSIONS = (*datasets.folder.IMG_EXTENSIONS, ".gif")  # which files are images; the decoder goes by their content


class ImageFolder(datasets.ImageFolder):
    """The images of `<root>/<class>/*` as (transformed RGB image, class index), classes sorted by name.

    The samples and their order are those of torchvision's ImageFolder, hidden files and folders left out. File bytes come
    from `cache` where it has them, verbatim; an image decodes alike from either place.

    Raises: DataError for a missing folder or an empty class; on access UnreadableImage for a file that cannot be read or
    decoded, and DataError for an image that the transform refuses, each with its path.
    """

    def __init__(
        self,
        root: Path,
        transform: Callable[..., Any] | None,
        *,
        cache: ByteCache | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        root = root.expanduser().absolute()
        try:
            super().__init__(str(root), transform=transform, is_valid_file=is_image_name)
        except OSError as error:
            raise DataError(f"{error}\nexpected {expected_layout(root.parent)}") from error
        self.max_pixels = max_pixels
        self._files = CachedFiles(str(root), [path for path, _ in self.samples], cache) if cache is not None else None
        self._batch: _Batch | None = None

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """The class folders, and the number of each."""
        classes = class_folders(Path(directory))
        if not classes:
            raise FileNotFoundError(f"{directory} holds no class folder")
        return classes, {name: index for index, name in enumerate(classes)}

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self._batch is None:
            return self.__getitems__([index])[0]
        path, target = self.samples[index]
        image = self._image(index, self._batch)
        if self.transform is None:
            return image, target
        try:
            return self.transform(image), target
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """The samples of a batch, with one request to the cache. torch's loaders call it."""
        with self.ahead(indices):
            return [self[index] for index in indices]

    @contextlib.contextmanager
    def ahead(self, indices: Sequence[int]) -> Iterator[None]:
        """Within the block, take these images from one look into the cache; after it, what was read from disk is kept there."""
        self._batch = _Batch(self._files.look_up(indices) if self._files is not None else {})
        try:
            yield
            if self._files is not None and self._batch.read:
                self._files.keep(self._batch.read)
        finally:
            self._batch = None

    def _image(self, index: int, batch: "_Batch") -> Image.Image:
        # with repeated augmentation a batch has an image several times in a row; transforms leave their input as it is
        if batch.last is None or batch.last[0] != index:
            batch.last = index, self._decoded(index, batch)
        return batch.last[1]

    def _decoded(self, index: int, batch: "_Batch") -> Image.Image:
        path, _ = self.samples[index]
        if self._files is None:
            return decode_rgb(read_file(path)[0], path=path, max_pixels=self.max_pixels)
        if index in batch.looked_up:
            return decode_rgb(batch.looked_up[index], path=path, max_pixels=self.max_pixels)
        data = self._files.read(index)
        image = decode_rgb(data, path=path, max_pixels=self.max_pixels)
        batch.read[index] = data  # after decoding: an unreadable or empty file is never kept
        return image


@dataclass
class _Batch:
    looked_up: dict[int, bytes]  # from the cache
    read: dict[int, bytes] = field(default_factory=dict)  # from disk
    last: tuple[int, Image.Image] | None = None  # that was decoded


def is_image_name(path: str) -> bool:
    """Whether a file is one of the images: by its extension, and not hidden, as are the `._` files that macOS leaves."""
    return path.lower().endswith(EXTENSIONS) and not os.path.basename(path).startswith(".")


def expected_layout(root: Path) -> str:
    """The one description of a data root that every message uses."""
    return f"{root}/{{train,val}}/<class>/*, images in one folder per class, the same classes in train and val"


def folder_problems(root: Path, *, splits: tuple[str, ...], num_classes: int) -> list[str]:
    """Why the data root cannot serve these splits and classes; lists folders, opens no file.

    One missing folder is one problem. Class names are compared only where every folder could be listed.
    """
    root = root.expanduser().absolute()
    missing = [str(root / split) for split in splits if not os.path.isdir(root / split)]
    if missing:
        return [
            f"dataloader_cfg.data_root: no folder {' and no folder '.join(missing)}; expected {expected_layout(root)}; "
            "set dataloader_cfg.data_root or the environment variable IMAGENET_HOME, or dataloader_cfg.fake_data=true"
        ]
    try:
        classes = {split: class_folders(root / split) for split in splits}
    except OSError as error:
        return [f"dataloader_cfg.data_root: {error.filename} cannot be listed: {error.strerror}; give this user access"]
    return _class_problems(root, classes, num_classes)


def class_folders(split_folder: Path) -> list[str]:
    """Sorted names of the class folders of one split. Hidden ones (`.ipynb_checkpoints`) are no classes."""
    with os.scandir(split_folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _class_problems(root: Path, classes: dict[str, list[str]], num_classes: int) -> list[str]:
    (first, names), *others = classes.items()
    for other, other_names in others:
        if names != other_names:
            return [
                f"dataloader_cfg.data_root: the class folders of {root}/{first} and {root}/{other} differ: "
                f"only {first} has {_some(names, other_names)}; only {other} has {_some(other_names, names)}; "
                f"expected {expected_layout(root)}"
            ]
    if len(names) == num_classes:
        return []
    if not names:
        return [f"dataloader_cfg.data_root: {root}/{first} holds no class folder; expected {expected_layout(root)}"]
    return [
        f"dataloader_cfg.data_root: {root}/{first} has {len(names)} class folders, but module_cfg.num_classes={num_classes}; "
        f"set module_cfg.num_classes={len(names)}, or dataloader_cfg.data_root to the set with {num_classes} classes"
    ]


def _some(names: list[str], without: list[str]) -> str:
    extra = sorted(set(names) - set(without))
    return ", ".join(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "") if extra else "none"
