"""The samples in one shard, a tar file in the WebDataset convention, read from its headers."""

import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinyexp.data.class_folder import EXTENSIONS
from tinyexp.errors import DataError

META_NAME = re.compile(r"__[^/]*__(/|$)")  # members that the webdataset library passes over
BLOCK = 512  # bytes; a tar file is made of them
LARGEST_CLASS_FILE = 20  # bytes: more digits than a class number has


@dataclass(frozen=True, slots=True)
class Sample:
    """An image in a shard."""

    member: str  # its name there
    offset: int  # of its bytes in the shard
    size: int  # in bytes
    target: int  # class number


@dataclass(frozen=True, slots=True)
class _Member:
    key: str  # what the members of a sample have in common: the name up to the first dot after the last slash
    extension: str  # the rest, in small letters
    name: str  # the whole of it
    offset: int  # of its bytes in the shard
    size: int  # in bytes


def read_samples(path: Path) -> list[Sample]:
    """The samples in the order of their members. Of the images nothing is read; the `.cls` members are.

    Raises: OSError; DataError that starts with the shard, and the member where it is about one.
    """
    with open(path, "rb") as file:
        members = list(_members(path, file.fileno()))
        samples = [_sample(path, file.fileno(), list(group)) for _, group in itertools.groupby(members, lambda each: each.key)]
    if not samples:
        raise DataError(f"{path}: the shard is empty: it holds no sample; remove it, or pack it again")
    seen = set()
    for sample in samples:
        if sample.member in seen:
            raise DataError(f"{path}: {sample.member}: the shard holds this member twice; pack it again")
        seen.add(sample.member)
    return samples


def _members(path: Path, descriptor: int) -> Iterator[_Member]:
    """Regular files whose names have a key. Hidden ones (`._` of macOS) and those of META_NAME are none."""
    end = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for each in archive:
                end = each.offset_data + -(-each.size // BLOCK) * BLOCK
                folder, _, file_name = each.name.rpartition("/")
                stem, dot, extension = file_name.partition(".")
                if each.isreg() and stem and dot and not META_NAME.match(each.name):
                    yield _Member(
                        f"{folder}/{stem}" if folder else stem, extension.lower(), each.name, each.offset_data, each.size
                    )
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  the headers so far, maybe millions
    except tarfile.TarError as error:
        raise DataError(f"{path}: the shard is truncated, or no uncompressed tar file: {error}; {_after(end)}") from error
    # a header that is damaged ends the loop above in silence, and so does a file that was cut between two members
    if os.pread(descriptor, BLOCK, end) != bytes(BLOCK):
        raise DataError(f"{path}: the shard is truncated or damaged: it has no end mark; {_after(end)}")


def _after(end: int) -> str:
    return f"good up to byte {end:,}; copy or pack it again"


def _sample(path: Path, descriptor: int, members: list[_Member]) -> Sample:
    first = members[0].name
    images = [each for each in members if f".{each.extension}" in EXTENSIONS]
    classes = [each for each in members if each.extension == "cls"]
    if not images:
        raise DataError(f"{path}: {first}: no image ({', '.join(EXTENSIONS)}) lies beside it under the key {members[0].key}")
    if len(images) > 1:
        names = " and ".join(each.name for each in images)
        raise DataError(f"{path}: {names}: two images under one key; a key is the name up to the first dot")
    name = images[0].name
    if not classes:
        raise DataError(f"{path}: {name}: no {members[0].key}.cls beside it; the members of a sample must follow each other")
    if len(classes) > 1:
        raise DataError(f"{path}: {name}: {len(classes)} .cls members beside it; one is needed")
    return Sample(name, images[0].offset, images[0].size, _class_number(path, descriptor, classes[0]))


def _class_number(path: Path, descriptor: int, member: _Member) -> int:
    text = os.pread(descriptor, min(member.size, LARGEST_CLASS_FILE), member.offset).decode("ascii", "replace").strip()
    if not text.isdecimal() or member.size > LARGEST_CLASS_FILE:
        raise DataError(f"{path}: {member.name}: {text!r} is no class number; it must be a whole number from 0 on, as text")
    return int(text)
