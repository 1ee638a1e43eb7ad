"""Images in WebDataset shards: what a data root must hold, and their members as files."""

import json
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any

from tinyexp.data.decoding import UnreadableImage
from tinyexp.data.file_bytes import LARGEST_FILE_BYTES, Stamp, tried_twice
from tinyexp.data.shard_index import ShardIndex, load_index
from tinyexp.errors import DataError

MOST_OPEN = 128  # shards of one process
CLASS_FILES = ("classes.json", "classes.txt")


class ShardFiles:
    """The images of `<root>/*.tar`, in the order of the shards' names and of the members in each, with their `.cls` numbers.

    A member is read by its offset, so that any order costs the same. Shards stay open.

    Raises: DataError for shards that cannot be used.
    """

    def __init__(self, root: Path) -> None:
        root = root.expanduser().absolute()
        self.root = str(root)
        self._index = load_index(root)
        if not self._index.shards:
            raise DataError(f"{root} holds no *.tar shard; expected {expected_shards(root.parent)}")
        names = read_class_names(root)
        problems = _out_of_range(self.root, self._index, len(names)) if names else []
        if problems:
            raise DataError("\n".join(problems))
        self.targets = self._index.places[:, 3]
        self.classes = names or [str(number) for number in range(int(self.targets.max()) + 1)]
        self._descriptors: OrderedDict[int, int] = OrderedDict()  # of open shards by their number, the last used one last

    def name(self, position: int) -> str:
        """`<shard>.tar: <member>`, with the path of the shard."""
        shard = self._index.shards[self._index.places[position, 0]]
        return f"{self.root}/{shard}: {self._index.member(position)}"

    def names(self, positions: range) -> bytes:
        """Of the members, with a zero byte after each: shards of other sizes hold the same images."""
        return self._index.member_names(positions)

    def stamp(self, position: int) -> Stamp:
        """Size of the member, time of the shard."""
        shard, _, size, _ = self._index.places[position].tolist()
        return size, self._index.stamps[shard][1]

    def read(self, position: int) -> tuple[bytes, Stamp]:
        """Raises: UnreadableImage; DataError where the shard is not the one that was indexed."""
        shard, offset, size, _ = self._index.places[position].tolist()
        name = self.name(position)
        if size > LARGEST_FILE_BYTES:
            raise UnreadableImage(f"{name}: the member cannot be read: {size:,} bytes are no image; remove it")
        data = tried_twice(lambda: self._read(shard, offset, size), name=name)
        if len(data) < size:
            raise UnreadableImage(f"{name}: the member cannot be read: the shard ends within it; copy or pack it again")
        return data, self.stamp(position)

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        data = b""
        try:
            descriptor = self._open(shard)
            while len(data) < size and (part := os.pread(descriptor, size - len(data), offset + len(data))):
                data += part
            self._require_indexed(shard, descriptor)  # after the reading: it may have been written to in place
        except (OSError, DataError):
            self._close(shard)  # a network file system may want it opened again
            raise
        return data

    def _open(self, shard: int) -> int:
        if shard not in self._descriptors:
            if len(self._descriptors) >= MOST_OPEN:
                self._close(next(iter(self._descriptors)))
            path = f"{self.root}/{self._index.shards[shard]}"
            self._descriptors[shard] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._require_indexed(shard, self._descriptors[shard])
        self._descriptors.move_to_end(shard)
        return self._descriptors[shard]

    def _require_indexed(self, shard: int, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if (found.st_size, found.st_mtime_ns) != self._index.stamps[shard] or not stat.S_ISREG(found.st_mode):
            path = f"{self.root}/{self._index.shards[shard]}"
            raise DataError(f"{path}: the shard was changed while the run reads it; start the run again with resume_from=auto")

    def _close(self, shard: int) -> None:
        if (descriptor := self._descriptors.pop(shard, None)) is not None:
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        """Open shards do not travel to another process."""
        return self.__dict__ | {"_descriptors": OrderedDict()}

    def __del__(self) -> None:
        for shard in list(getattr(self, "_descriptors", ())):
            self._close(shard)


def expected_shards(root: Path) -> str:
    """The one description of a root of shards that every message uses."""
    return (
        f"{root}/{{train,val}}/*.tar, WebDataset shards whose samples are <key>.<jpg, png, ...> and <key>.cls, the class number"
    )


def read_class_names(split_folder: Path) -> list[str]:
    """From `classes.json` (a list) or `classes.txt` (a line each) beside the shards, else in the data root; [] without either.

    Raises: DataError.
    """
    for path in (folder / name for folder in (split_folder, split_folder.parent) for name in CLASS_FILES):
        try:
            text = path.read_text(encoding="utf-8")
            names = json.loads(text) if path.suffix == ".json" else [line.strip() for line in text.splitlines() if line.strip()]
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read: {error}; it must hold the class names in the order of their numbers"
            ) from error
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path} must hold a list of class names in the order of their numbers")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{path} names {twice!r} twice; each class needs a name of its own")
        return names
    return []


def shard_problems(root: Path, *, splits: tuple[str, ...], num_classes: int) -> list[str]:
    """Why the shards cannot serve these splits and classes. Reads their index, or where there is none their headers, no image."""
    root = root.expanduser().absolute()
    indices, names, problems = {}, {}, []
    for split in splits:
        try:
            indices[split], names[split] = load_index(root / split), read_class_names(root / split)
            if not indices[split].shards:
                problems.append(f"{root / split} holds no *.tar shard; expected {expected_shards(root)}")
        except DataError as error:
            problems += str(error).splitlines()
    problems = problems or _class_problems(root, indices, names, num_classes)
    return [f"dataloader_cfg.data_root: {problem}" for problem in problems]


def _class_problems(root: Path, indices: dict[str, ShardIndex], names: dict[str, list[str]], num_classes: int) -> list[str]:
    (first, first_names), *others = names.items()
    for other, other_names in others:
        if other_names != first_names:
            return [f"the class names of {root}/{first} and {root}/{other} differ; put one classes.json into {root}"]
    if first_names and len(first_names) != num_classes:
        return [
            f"{root} names {len(first_names)} classes, but module_cfg.num_classes={num_classes}; set module_cfg.num_classes="
            f"{len(first_names)}, or dataloader_cfg.data_root to the set with {num_classes} classes"
        ]
    out_of_range = [line for split in indices for line in _out_of_range(f"{root}/{split}", indices[split], num_classes)]
    count = 1 + max(int(index.places[:, 3].max()) for index in indices.values())
    if not first_names and count < num_classes and "train" in indices:  # a few images to evaluate need not be of all classes
        return [
            f"the classes in {root}/{' and '.join(indices)} go from 0 to {count - 1}, but module_cfg.num_classes={num_classes}; "
            f"set module_cfg.num_classes={count}, or name all {num_classes} classes in {root}/classes.json"
        ]
    return out_of_range


def _out_of_range(folder: str, index: ShardIndex, num_classes: int) -> list[str]:
    """The first image whose class number is too large, and how many there are."""
    positions = (index.places[:, 3] >= num_classes).nonzero()[0]
    if not len(positions):
        return []
    shard, _, _, target = index.places[positions[0]].tolist()
    return [
        f"{folder}/{index.shards[shard]}: {index.member(positions[0])}: its class is {target}, but there are {num_classes} "
        f"classes, 0 to {num_classes - 1} ({len(positions):,} such images); pack the set again, or set module_cfg.num_classes="
        f"{int(index.places[:, 3].max()) + 1}, with as many names where there is a file of names"
    ]
