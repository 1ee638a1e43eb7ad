"""Which images a split has, and of which classes, in a few bytes that ranks and checkpoints can compare."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from tinyexp.data.file_bytes import ImageFiles
from tinyexp.errors import DataError

CHUNK = 65_536  # names that are joined at a time
MOST_RANKS = 4  # that a message lists for one reading of the set

Listing = dict[str, Any]  # what `listing` returns


def listing(files: ImageFiles, first: int | None = None) -> Listing:
    """Of a split's images, or the first ones alone: how many, and SHA-256 of their names below the split's folder and of their
    class numbers, in their order. Equal ones mean that a sampler's number stands for the same image.
    """
    count = len(files.targets) if first is None else min(first, len(files.targets))
    names = hashlib.sha256()
    for start in range(0, count, CHUNK):
        names.update(files.names(range(start, min(start + CHUNK, count))))
    classes = hashlib.sha256(numpy.asarray(files.targets[:count], dtype="<i8").tobytes())
    return {"images": count, "names": names.hexdigest(), "classes": classes.hexdigest()}


def require_same_images(splits: Mapping[str, ImageFiles], exchange: Callable[[Any], list[Any]]) -> dict[str, Listing]:
    """The listing of each split, once it is known that all ranks have the same: each lists the folders for itself.

    `exchange` gives the values of all ranks, in rank order. Every rank must call this, with the same splits.

    Raises: DataError on every rank that says which ranks have how many images, and the first that differs.
    """
    own = {split: listing(files) for split, files in splits.items()}
    everyone = exchange(own)
    for split, files in splits.items():
        found: Sequence[Listing] = [of[split] for of in everyone]
        if any(each != found[0] for each in found):
            raise DataError(
                f"the ranks do not see the same {split} images: {_counts(found)}. {_first_difference(files, exchange, found)}; "
                f"copy the set again where it is incomplete (this rank reads {files.root}), so that every machine has the same"
            )
    return own


def _counts(found: Sequence[Listing]) -> str:
    """`11 images on rank 0, 10 images on rank 1`; ranks that agree stand together."""
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(found):
        ranks.setdefault(str(each), []).append(rank)
    parts = []
    for group in ranks.values():
        more = f" and {len(group) - MOST_RANKS} more" if len(group) > MOST_RANKS else ""
        which = ", ".join(map(str, group[:MOST_RANKS]))
        parts.append(f"{found[group[0]]['images']:,} images on rank{'s' * (len(group) > 1)} {which}{more}")
    return "; ".join(parts[:MOST_RANKS]) + (f"; and {len(parts) - MOST_RANKS} other sets" if len(parts) > MOST_RANKS else "")


def _first_difference(files: ImageFiles, exchange: Callable[[Any], list[Any]], found: Sequence[Listing]) -> str:
    """Which image the ranks first differ in. All of them search for it, by halves: their lists are too long to be sent."""
    same, other = 0, max(each["images"] for each in found)  # so many first images are the same, and so many are not
    while other - same > 1:
        middle = (same + other) // 2
        parts = exchange(listing(files, middle))
        same, other = (middle, other) if all(part == parts[0] for part in parts) else (same, middle)
    entries = exchange(_entry(files, same))
    rank = next(rank for rank, entry in enumerate(entries) if entry != entries[0])
    return f"They differ from number {same} on: {entries[0]} on rank 0, {entries[rank]} on rank {rank}"


def _entry(files: ImageFiles, position: int) -> str:
    if position >= len(files.targets):
        return "no more images"
    name = files.names(range(position, position + 1))[:-1].decode("utf-8", "backslashreplace")
    return f"{name} of class {files.classes[int(files.targets[position])]}"
