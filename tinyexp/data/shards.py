"""Class folders packed into WebDataset shards.

    python -m tinyexp.data.shards pack <data root> <out> [--images-per-shard N]
    ... dataloader_cfg.data_root=<out> dataloader_cfg.data_format=shards

Images are copied as they are, in the order of the class folders and their files. A run shuffles by position, so that one from
the shards takes the same images in the same order, and is bit-equal, to one from the folders.
"""

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from rich.progress import track

from tinyexp.data.command import one_message, positive
from tinyexp.data.image_folder import FolderFiles, expected_layout
from tinyexp.data.shard_index import shard_names
from tinyexp.data.shard_members import META_NAME
from tinyexp.data.sources import SPLITS, other_format
from tinyexp.data.whole_file import sync_folder, write_whole
from tinyexp.errors import DataError
from tinyexp.limits import home_path
from tinyexp.streams import end_of_output

IMAGES_PER_SHARD = 10_000  # of 110 kB each: about a gigabyte


def pack(root: Path, out: Path, *, images_per_shard: int = IMAGES_PER_SHARD) -> dict[str, int]:
    """Write {train,val}/<split>-<number>.tar and classes.json into a new folder; returns the number of images of each split.

    A split that the root lacks is left out. The folder gets its name only when everything in it is complete and on disk. The
    same images give the same bytes, whenever and wherever they are packed.

    Raises: DataError for a root that is none, an unreadable file, or an `out` that exists or is a class of the root.
    """
    root, out = root.expanduser().absolute(), out.expanduser().absolute()
    if os.path.lexists(out):
        raise DataError(f"{out} exists; remove it, or choose another folder for the shards")
    for split in SPLITS:
        if (root / split).resolve() in out.resolve().parents:
            raise DataError(
                f"{out} lies in {root / split} and would count as a class of it; choose a folder outside for the shards"
            )
    splits = {split: _files(root / split) for split in SPLITS if (root / split).is_dir()}
    if not splits:
        raise DataError(f"{root} holds neither train nor val; expected {expected_layout(root)}")
    names = [files.classes for files in splits.values()]
    if meta := [name for name in names[0] if META_NAME.match(f"{name}/")]:
        raise DataError(f"{root}: readers of shards pass over members of a class named {meta[0]}; give that folder another name")
    if names[0] != names[-1]:
        raise DataError(f"the class folders of {root}/train and {root}/val differ; expected {expected_layout(root)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
            draft = Path(temporary) / out.name
            for split, files in splits.items():
                _write_split(draft / split, files, images_per_shard)
            write_whole(draft / "classes.json", (json.dumps(names[0]) + "\n").encode())
            for folder in (*(draft / split for split in splits), draft):
                sync_folder(folder)
            os.rename(draft, out)
        sync_folder(out.parent)
    except OSError as error:
        left = "they are complete, but may not outlast a power failure" if out.exists() else "nothing was left there"
        raise DataError(f"the shards cannot be written to {out}: {error.strerror}; {left}") from error
    return {split: len(files.targets) for split, files in splits.items()}


def _files(split_folder: Path) -> FolderFiles:
    if shard_names(split_folder) and (problem := other_format(split_folder, "folder", "--data-format ")):
        raise DataError(f"{problem.partition(';')[0]}: it is packed already")
    return FolderFiles(split_folder)


def _write_split(folder: Path, files: FolderFiles, images_per_shard: int) -> None:
    folder.mkdir(parents=True)
    taken: set[str] = set()
    starts = range(0, len(files.targets), images_per_shard)
    for number, start in enumerate(track(starts, f"{folder.name}: shards", disable=not sys.stdout.isatty())):
        positions = range(start, min(start + images_per_shard, len(files.targets)))
        _write_shard(folder / f"{folder.name}-{number:06}.tar", files, positions, taken)


def _write_shard(path: Path, files: FolderFiles, positions: Iterable[int], taken: set[str]) -> None:
    with open(path, "xb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for position in positions:
                image = files.read(position)[0]
                relative = PurePosixPath(files.name(position)[len(files.root) + 1 :])
                key = free_key(relative, taken)
                _add(archive, f"{key}.cls", str(files.targets[position]).encode())
                _add(archive, f"{key}{relative.suffix.lower()}", image)
        file.flush()
        os.fsync(file.fileno())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # of no user and no time
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def free_key(relative: PurePosixPath, taken: set[str]) -> str:
    """The key of a file: its path without extension. Dots of its name, which would end a key, and a key in use give others."""
    key = str(relative.parent / relative.stem.replace(".", "_"))
    if key in taken:  # a.jpg beside a.png
        key = str(relative.parent / relative.name.replace(".", "_"))
    while key in taken:
        key += "_"
    taken.add(key)
    return key


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tinyexp.data.shards", description="Class folders packed into WebDataset shards."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="pack <root>/{train,val}/<class>/* into <out>/{train,val}/*.tar")
    packing.add_argument("root", type=home_path, help="data root with class folders")
    packing.add_argument("out", type=home_path, help="folder to write, which must not exist")
    packing.add_argument("--images-per-shard", type=positive, default=IMAGES_PER_SHARD, metavar="N", help="default %(default)s")
    arguments = parser.parse_args()
    with one_message(interrupted="nothing was written"):
        counts = pack(arguments.root, arguments.out, images_per_shard=arguments.images_per_shard)
    packed = " and ".join(f"{count:,} images of {split}" for split, count in counts.items())
    print(f"{packed} in {arguments.out}; use dataloader_cfg.data_root={arguments.out} dataloader_cfg.data_format=shards")


if __name__ == "__main__":
    with end_of_output():
        main()
