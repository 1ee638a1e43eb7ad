"""Class folders or shards: what `dataloader_cfg.data_format` says, never a guess from what lies there."""

from pathlib import Path

from tinyexp.data.file_bytes import ImageFiles
from tinyexp.data.image_folder import FolderFiles, class_folders, expected_layout, folder_problems
from tinyexp.data.image_shards import ShardFiles, expected_shards, shard_problems
from tinyexp.data.shard_index import shard_names

DATA_FORMATS = ("folder", "shards")
SPLITS = ("train", "val")  # the folders of a data root


def files_of(split_folder: Path, data_format: str) -> ImageFiles:
    """The images of one split. Raises: DataError."""
    return ShardFiles(split_folder) if data_format == "shards" else FolderFiles(split_folder)


def root_problems(root: Path, *, data_format: str, splits: tuple[str, ...], num_classes: int) -> list[str]:
    """Why the data root cannot serve these splits and classes; opens no image.

    One missing folder is one problem. Classes are compared only where every split could be listed.
    """
    root = root.expanduser().absolute()
    missing = [str(root / split) for split in splits if not (root / split).is_dir()]
    if missing:
        expected = expected_shards(root) if data_format == "shards" else expected_layout(root)
        return [
            f"dataloader_cfg.data_root: no folder {' and no folder '.join(missing)}; expected {expected}; "
            "set dataloader_cfg.data_root or the environment variable IMAGENET_HOME, or dataloader_cfg.fake_data=true"
        ]
    try:
        for split in splits:
            if problem := other_format(root / split, data_format):
                return [f"dataloader_cfg.data_root: {problem}"]
    except OSError as error:
        return [f"dataloader_cfg.data_root: {error.filename} cannot be listed: {error.strerror}; give this user access"]
    problems_of = shard_problems if data_format == "shards" else folder_problems
    return problems_of(root, splits=splits, num_classes=num_classes)


def other_format(split_folder: Path, data_format: str, key: str = "dataloader_cfg.data_format=") -> str:
    """Which format to ask for instead, with the spelling of its key; "" where nothing speaks for it. Raises: OSError."""
    classes, shards = class_folders(split_folder), shard_names(split_folder)
    if data_format == "folder" and shards and not classes:
        return f"{split_folder} holds {len(shards)} *.tar shards and no class folder; set {key}shards"
    if data_format == "shards" and classes and not shards:
        return f"{split_folder} holds {len(classes)} class folder{'s' * (len(classes) > 1)} and no *.tar shard; set {key}folder"
    return ""
