"""Loader configurations that the tests of this room share."""

from pathlib import Path
from typing import Any

from tinyexp.data.loaders import DataLoaderCfg


def toy_cfg(root: Path, **changes) -> DataLoaderCfg:
    values: dict[str, Any] = {
        "train_batch_size_per_device": 8,
        "val_batch_size_per_device": 4,
        "num_workers": 0,
        "input_size": 40,
    }
    return DataLoaderCfg(data_root=str(root), **(values | changes))


def fake_cfg(**changes) -> DataLoaderCfg:
    values: dict[str, Any] = {
        "train_batch_size_per_device": 8,
        "val_batch_size_per_device": 8,
        "num_workers": 0,
        "input_size": 32,
    }
    return DataLoaderCfg(fake_data=True, **(values | changes))
