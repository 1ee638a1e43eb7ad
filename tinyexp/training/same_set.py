"""Whether a run's images are those that a checkpoint knows."""

from collections.abc import Mapping, Sequence
from typing import Any

from tinyexp.errors import DataError

CONSEQUENCES = {
    "train": "the run goes on with another order of images, and the rest of an epoch under way may repeat or miss some",
    "val": "accuracies are of other images than the checkpoint's best one",
}


def require_same_classes(then: Sequence[str], now: Sequence[str], *, source: str, advice: str) -> list[str]:
    """That the class numbers of a set mean what they meant to the run that wrote the checkpoint `source`.

    Nothing is compared where one side has no names, as an official file has none. Shards without names are called by their
    numbers, which say nothing of what the other side calls its classes; the note that comes back says so.

    Raises: DataError that ends with the `advice`.
    """
    if not then or not now or list(then) == list(now):
        return []
    if _are_numbers(then) or _are_numbers(now):
        whose = "the checkpoint's" if _are_numbers(then) else "the set's"
        return [f"{whose} classes have numbers for names: whether they are the same classes cannot be told"]
    place = next(
        (place for place, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]), min(len(then), len(now))
    )
    raise DataError(
        f"checkpoint {source} was trained on {len(then)} classes ({_some(then, place)}), "
        f"dataloader_cfg.data_root has {len(now)} ({_some(now, place)}): they differ from class {place} on; {advice}"
    )


def changed_images(then: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """How the listings of the splits (`data/file_list.py`) differ from the checkpoint's: warnings, and notes.

    Neither stops a run: a set may have been mended on purpose, and every number still stands for an image. A split that
    one of them does not know is passed over.
    """
    warnings, notes = [], []
    for split in (split for split in then if split in now and then[split] != now[split]):
        before, after = then[split], now[split]
        means = CONSEQUENCES.get(split, "")
        if before["images"] != after["images"]:
            warnings.append(f"the {split} images are {after['images']:,} now, {before['images']:,} then: {means}")
        elif before["classes"] != after["classes"]:
            warnings.append(f"the {split} images are as many as then, but not of the same classes: {means}")
        else:
            notes.append(
                f"the {split} images have other names than then, in the same classes and order, as after packing or renaming"
            )
    return warnings, notes


def _are_numbers(names: Sequence[str]) -> bool:
    return list(names) == [str(number) for number in range(len(names))]


def _some(names: Sequence[str], place: int) -> str:
    """Three names, of which the first is at `place`."""
    shown = names[place : place + 3]
    return ("…, " if place else "") + ", ".join(shown) + (", …" if place + 3 < len(names) else "") if shown else "…"
