"""What tests of this room share."""

from pathlib import Path

import pytest

from tinyexp.data.shards import pack


@pytest.fixture(scope="session")
def packed(toy_set, tmp_path_factory) -> Path:
    """The toy set in shards of 10 images: seven of training and two of validation."""
    out = tmp_path_factory.mktemp("packed") / "shards"
    assert pack(toy_set, out, images_per_shard=10) == {"train": 64, "val": 11}
    return out
