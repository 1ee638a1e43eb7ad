"""Where the images lie, and where a run would write."""

import os
import shutil
import tempfile
from pathlib import Path

from tinyexp.doctor.finding import GB, LIMITED, MISSING, OK, Checks, Options

SPLITS = ("train", "val")
CHECKPOINTS = 1 * GB  # two files of DeiT-S with optimizer and average, 0.35 GB each


def data(options: Options) -> tuple[str, str, str]:
    root = Path(options.data_root).absolute()
    advice = (
        f"put the images into {root}/{{train,val}}/<class>/*, or set IMAGENET_HOME or dataloader_cfg.data_root; without data: "
        "python -m tinyexp.data.digits data/digits, or dataloader_cfg.fake_data=true"
    )
    absent = [split for split in SPLITS if not (root / split).is_dir()]
    if absent:
        return f"{root} has no {' and no '.join(absent)}", MISSING, advice
    try:
        classes = {split: _classes(root / split) for split in SPLITS}
    except OSError as error:
        return f"{error.filename} cannot be listed: {error.strerror}", MISSING, "give this user access"
    if not any(classes.values()) and all(_has_shards(root / split) for split in SPLITS):
        return f"{root}: *.tar shards in train and in val", OK, "set dataloader_cfg.data_format=shards"
    counts = [len(classes[split]) for split in SPLITS]
    found = f"{root}: {counts[0]} classes in train, {counts[1]} in val"
    if classes["train"] != classes["val"] or not counts[0]:
        return found, MISSING, "train and val need the same class folders, one or more"
    return found, OK, "" if counts[0] == 1000 else f"set module_cfg.num_classes={counts[0]}"


def output(options: Options) -> tuple[str, str, str]:
    """Whether a file can be made in the nearest folder that exists, and how much fits there."""
    root = Path(options.output_root).absolute()
    nearest = next(folder for folder in (root, *root.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{nearest} cannot be written: {error.strerror}", MISSING, "set output_root to a folder that can"
    free = shutil.disk_usage(nearest).free
    found = f"{root} can be written, {free / GB:.1f} GB free"
    if free < CHECKPOINTS:
        return found, LIMITED, f"two checkpoints of DeiT-S take {CHECKPOINTS / GB:g} GB; make room, or set another output_root"
    return found, OK, ""


CHECKS: Checks = {"output folder": output, "data folder": data}


def _has_shards(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.endswith(".tar") and not entry.name.startswith(".") for entry in entries)


def _classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
