"""Images in class folders: what a data root must hold, and the data set that reads it."""

import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from torchvision import datasets

from tinyexp.data.byte_cache import ByteCache
from tinyexp.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # what image sets hold; every other decoder stays out of reach
EXTENSIONS = (*datasets.folder.IMG_EXTENSIONS, ".gif")  # which files are images; the decoder goes by their content


class ImageFolder(datasets.ImageFolder):
    """The images of `<root>/<class>/*` as (transformed RGB image, class index), classes sorted by name.

    The samples and their order are those of torchvision's ImageFolder. File bytes come from `cache` where it has them,
    verbatim, under the file's absolute path; an image decodes alike from either place.

    Raises: DataError for a missing folder or an empty class, and on access for a file that cannot be read, with its path.
    """

    def __init__(self, root: Path, transform: Callable[..., Any], *, cache: ByteCache | None = None) -> None:
        root = root.expanduser().absolute()
        try:
            super().__init__(str(root), transform=transform, is_valid_file=is_image_name)
        except OSError as error:
            raise DataError(f"{error}\nexpected {expected_layout(root.parent)}") from error
        self.cache = cache

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        image = self._read(path)
        if self.transform is None:
            return image, target
        try:
            return self.transform(image), target
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def _read(self, path: str) -> Image.Image:
        cached = self.cache.get(path) if self.cache else None
        if cached:
            return decode_rgb(cached, path=path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"{path}: the file cannot be read: {error.strerror or error}") from error
        image = decode_rgb(data, path=path)
        if self.cache:
            self.cache.put(path, data)  # after decoding: an unreadable or empty file is never kept
        return image


def decode_rgb(data: bytes, *, path: str) -> Image.Image:
    """The RGB image in the bytes of one file. The content decides the format, not the name; four-colour JPEGs included.

    Raises: DataError with `path` and the reason, for truncated files too: a missing part is never filled with grey.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns for each of ImageNet's damaged EXIF blocks and for palettes with transparency.
            warnings.simplefilter("ignore", UserWarning)
            return Image.open(io.BytesIO(data), formats=FORMATS).convert("RGB")
    except UnidentifiedImageError as error:
        found = f"it starts with {data[:12]!r}" if data else "the file is empty"
        reason, cause = f"no {', '.join(FORMATS)} image: {found}", error
    except Exception as error:  # what a broken file raises depends on the decoder: OSError, SyntaxError, struct.error, ...
        reason, cause = str(error) or type(error).__name__, error
    raise DataError(f"{path}: the image cannot be decoded: {reason}; replace or remove the file") from cause


def is_image_name(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)


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
    """Sorted names of the class folders of one split."""
    with os.scandir(split_folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


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
