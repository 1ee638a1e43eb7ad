import os
import shutil
from pathlib import Path

import pytest

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.data.file_list import CHUNK, listing, require_same_images
from tinyexp.data.image_folder import FolderFiles
from tinyexp.data.image_shards import ShardFiles
from tinyexp.data.shards import pack
from tinyexp.data.sources import files_of
from tinyexp.errors import DataError
from tinyexp.process import Environment


@pytest.fixture(scope="module")
def sets(toy_set, packed, tmp_path_factory) -> dict[str, tuple[Path, str]]:
    """Sets of the toy set's validation images, and their formats."""
    root = tmp_path_factory.mktemp("sets")
    for name in ("copied", "less", "moved"):
        shutil.copytree(toy_set / "val", root / name / "val")
    (root / "less" / "val" / "c0" / "0.JPEG").unlink()
    (root / "moved" / "val" / "c3" / "1.JPEG").rename(root / "moved" / "val" / "c2" / "9.JPEG")
    pack(root / "less", root / "less_packed", images_per_shard=2)
    folders = {"whole": toy_set, **{name: root / name for name in ("copied", "less", "moved")}}
    shards = {"packed": packed, "less_packed": root / "less_packed"}
    return {name: (path / "val", "folder") for name, path in folders.items()} | {
        name: (path / "val", "shards") for name, path in shards.items()
    }


def compared(pairs: list[list[tuple[Path, str]]]) -> list[str]:
    """For each pair of sets, one a rank, what this rank says of it; "" where it goes on."""
    accelerator, said = build_accelerator(accelerator="ddp"), []
    for pair in pairs:
        files = files_of(*pair[Environment.read().world.rank])
        try:
            assert require_same_images({"val": files}, accelerator.exchange) == {"val": listing(files)}
            said.append("")
        except DataError as error:
            said.append(str(error))
    return said


def test_ranks_go_on_with_the_same_files_and_name_the_first_that_differs(sets):
    names = [("whole", "copied"), ("whole", "less"), ("moved", "whole"), ("packed", "packed"), ("less_packed", "packed")]
    for said in run_on_ranks(compared, 2, [[sets[name] for name in pair] for pair in names]):
        assert said[0] == said[3] == ""
        assert "11 images on rank 0; 10 images on rank 1" in said[1]
        assert "from number 0 on: c0/0.JPEG of class c0 on rank 0, c0/1.JPEG of class c0 on rank 1" in said[1]
        assert "from number 9 on: c2/9.JPEG of class c2 on rank 0, c3/0.JPEG of class c3 on rank 1" in said[2]
        assert "10 images on rank 0; 11 images on rank 1" in said[4]
        assert "from number 0 on: c0/1.jpeg of class c0 on rank 0, c0/0.jpeg of class c0 on rank 1" in said[4]


def test_the_listing_knows_names_and_classes_and_not_where_the_set_lies_or_how_it_is_packed(sets, toy_set, tmp_path):
    whole, copied, moved = (listing(FolderFiles(sets[name][0])) for name in ("whole", "copied", "moved"))
    assert whole == copied
    assert (moved["images"], whole["images"]) == (11, 11)
    assert moved["names"] != whole["names"]
    assert moved["classes"] != whole["classes"]
    pack(toy_set, tmp_path / "other", images_per_shard=3)
    assert listing(ShardFiles(tmp_path / "other" / "val")) == listing(ShardFiles(sets["packed"][0]))
    assert listing(ShardFiles(sets["packed"][0]))["classes"] == whole["classes"]


def test_the_first_images_have_the_listing_of_a_set_that_ends_there(sets):
    for name, less in (("whole", FolderFiles), ("packed", ShardFiles)):
        files = less(sets[name][0])
        digests = [listing(files, first)["names"] for first in range(12)]
        assert len(set(digests)) == 12
        assert digests[11] == listing(files)["names"] == listing(files, 2 * CHUNK)["names"]


def test_a_name_that_is_no_text_has_a_listing_too(tmp_path):
    (tmp_path / "c0").mkdir()
    (tmp_path / "c0" / os.fsdecode(b"\xff.png")).touch()
    assert FolderFiles(tmp_path).names(range(1)) == b"c0/\xff.png\0"
    assert listing(FolderFiles(tmp_path))["images"] == 1
