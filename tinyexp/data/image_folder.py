"""Images in class folders: what a data root must hold, and its files."""

import os
from pathlib import Path

from tinyexp.data.class_folder import EXTENSIONS, has_image, image_paths, listed
from tinyexp.data.file_bytes import Stamp, read_file
from tinyexp.errors import DataError


class FolderFiles:
    """The image files of `<root>/<class>/*`, classes sorted by name.

    Files and their order are those of torchvision's ImageFolder, also of folders within the classes. Hidden files, such as the
    `._` ones that macOS leaves, and all that lies in hidden folders are left out.

    Raises: DataError for a folder that is missing or cannot be listed, an empty class, and a link that leads in a circle.
    """

    def __init__(self, root: Path) -> None:
        root = root.expanduser().absolute()
        self.root = str(root)
        try:
            self.classes = class_folders(root)
            if not self.classes:
                raise FileNotFoundError(f"{root} holds no class folder")
        except OSError as error:
            raise DataError(f"{error}\nexpected {expected_layout(root.parent)}") from error
        self.paths, self.targets, empty = list[str](), list[int](), []
        for number, name in enumerate(self.classes):
            found = image_paths(self.root, name)
            empty += [] if found else [name]
            self.paths += found
            self.targets += [number] * len(found)
        if empty:
            raise DataError(_no_images(root, empty))

    def name(self, position: int) -> str:
        """The path."""
        return self.paths[position]

    def names(self, positions: range) -> bytes:
        """Below the root, with a zero byte after each."""
        start = len(self.root) + 1
        return os.fsencode("".join([f"{path[start:]}\0" for path in self.paths[positions.start : positions.stop]]))

    def stamp(self, position: int) -> Stamp:
        """Raises: OSError."""
        found = os.stat(self.paths[position])
        return found.st_size, found.st_mtime_ns

    def read(self, position: int) -> tuple[bytes, Stamp]:
        """Raises: UnreadableImage."""
        return read_file(self.paths[position])


def expected_layout(root: Path) -> str:
    """The one description of a data root that every message uses."""
    return f"{root}/{{train,val}}/<class>/*, images in one folder per class, the same classes in train and val"


def folder_problems(root: Path, *, splits: tuple[str, ...], num_classes: int) -> list[str]:
    """Why the class folders of these splits cannot serve so many classes; lists folders, opens no file. Raises: OSError."""
    classes = {split: class_folders(root / split) for split in splits}
    if problems := _class_problems(root, classes, num_classes):
        return problems
    for split, names in classes.items():
        try:
            empty = [name for name in names if not has_image(f"{root}/{split}", name)]
        except DataError as error:
            problems.append(f"dataloader_cfg.data_root: {error}")
            continue
        problems += [f"dataloader_cfg.data_root: {_no_images(root / split, empty)}"] if empty else []
    return problems


def class_folders(split_folder: Path) -> list[str]:
    """Sorted names of the class folders of one split. Hidden ones (`.ipynb_checkpoints`) are no classes."""
    return sorted(entry.name for entry in listed(split_folder) if entry.is_dir() and not entry.name.startswith("."))


def _no_images(split_folder: Path, classes: list[str]) -> str:
    which = f"{len(classes)} class folders hold" if len(classes) > 1 else "a class folder holds"
    return (
        f"{which} no image ({', '.join(EXTENSIONS)}): {split_folder}/{_some(classes, [])}; put images there, or remove "
        f"{'them' if len(classes) > 1 else 'it'} from train and val; expected {expected_layout(split_folder.parent)}"
    )


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
    found = f"{len(names)} class folder{'s' * (len(names) > 1)}"
    return [
        f"dataloader_cfg.data_root: {root}/{first} has {found}, but module_cfg.num_classes={num_classes}; "
        f"set module_cfg.num_classes={len(names)}, or dataloader_cfg.data_root to the set with {num_classes} classes"
    ]


def _some(names: list[str], without: list[str]) -> str:
    extra = sorted(set(names) - set(without))
    return ", ".join(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "") if extra else "none"
