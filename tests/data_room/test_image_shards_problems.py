"""Shards that cannot work: one message each, with shard and member, before anything starts."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.data_room.configs import toy_cfg
from tests.data_room.shard_files import picture, problems_of, write_shard
from tinyexp.data.class_names import class_names
from tinyexp.data.image_shards import ShardFiles
from tinyexp.errors import DataError
from tinyexp.process import Axis


def cut(path: Path, size: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)


def damage_second_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(512 * (1 + -(-len(picture()) // 512)))
        file.write(b"x" * 512)


GOOD = [("a.jpg", picture()), ("a.cls", b"0")]
BROKEN = {
    "cut in an image": (GOOD, lambda path: cut(path, 800), r"the shard is truncated, or no uncompressed tar file"),
    "cut between members": (
        GOOD,
        lambda path: cut(path, 2048 + len(picture()) // 512 * 512),
        r"the shard is truncated or damaged: ",
    ),
    "a damaged header": (GOOD, damage_second_header, r"the shard is truncated or damaged: it has no end mark; good up to byte"),
    "no tar": (GOOD, lambda path: path.write_bytes(b"x" * 2000), r"the shard is truncated, or no uncompressed tar file"),
    "an empty file": (GOOD, lambda path: path.write_bytes(b""), r"the shard is truncated, or no uncompressed tar file"),
    "no sample": ([], None, r"the shard is empty: it holds no sample"),
    "no class": ([*GOOD, ("b.jpg", b"")], None, r"b\.jpg: no b\.cls beside it; the members of a sample must follow each other"),
    "members apart": ([GOOD[0], ("b.jpg", b""), GOOD[1]], None, r"a\.jpg: no a\.cls beside it"),
    "no image": ([*GOOD, ("b.cls", b"0")], None, r"b\.cls: no image \(\.jpg, .*\) lies beside it under the key b"),
    "two images": ([*GOOD, ("a.png", b"")], None, r"a\.jpg and a\.png: two images under one key"),
    "two classes": ([*GOOD, ("a.cls", b"1")], None, r"a\.jpg: 2 \.cls members beside it"),
    "the same sample": ([*GOOD, ("b.jpg", b""), ("b.cls", b"0"), *GOOD], None, r"a\.jpg: the shard holds this member twice"),
    "no number": ([GOOD[0], ("a.cls", b"cat")], None, r"a\.cls: 'cat' is no class number"),
    "a negative number": ([GOOD[0], ("a.cls", b"-1")], None, r"a\.cls: '-1' is no class number"),
    "a class out of range": ([*GOOD, ("b.jpg", b""), ("b.cls", b"7")], None, r"b\.jpg: its class is 7, but there are 1 classes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_shard_is_one_message_with_shard_and_member_before_anything_starts(tmp_path, name):
    members, spoil, message = BROKEN[name]
    shard = write_shard(tmp_path / "val" / "a.tar", members)
    write_shard(tmp_path / "val" / "b.tar", GOOD)
    if spoil:
        spoil(shard)
    [problem] = problems_of(tmp_path)
    start = f"dataloader_cfg.data_root: {shard}: "
    assert problem.startswith(start)
    assert re.match(message, problem.removeprefix(start)), problem


def test_the_number_of_classes_is_checked_and_the_value_to_set_is_said(packed, tmp_path):
    assert problems_of(packed, 4, ("train", "val")) == []
    [problem] = problems_of(packed, 1000, ("train", "val"))
    assert f"{packed} names 4 classes, but module_cfg.num_classes=1000; set module_cfg.num_classes=4" in problem
    shutil.copytree(packed / "val", tmp_path / "val")
    shutil.copytree(packed / "val", tmp_path / "train")
    [problem] = problems_of(tmp_path, 1000, ("train", "val"))
    said = "go from 0 to 3, but module_cfg.num_classes=1000; set module_cfg.num_classes=4"
    assert f"the classes in {tmp_path}/train and val {said}" in problem
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    [problem] = problems_of(tmp_path, 3)
    assert "its class is 3, but there are 3 classes, 0 to 2 (2 such images)" in problem
    with pytest.raises(DataError, match="its class is 3"):
        ShardFiles(tmp_path / "val")


def test_shards_without_names_may_be_evaluated_without_images_of_the_last_classes(packed, tmp_path):
    shutil.copytree(packed / "val", tmp_path / "val")
    assert problems_of(tmp_path, 6) == []
    loader = toy_cfg(tmp_path, data_format="shards").build_val(Axis(), num_classes=6, device_type="cpu")
    assert class_names(loader, 6) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("classes.json", '{"a": 0}', "must hold a list of class names"),
        ("classes.json", "[", "cannot be read: Expecting value"),
        ("classes.txt", "a\nb\na\n", "names 'a' twice"),
        ("classes.txt", "\n", "must hold a list of class names"),
    ],
)
def test_a_file_of_names_that_is_none_says_so(tmp_path, name, text, message):
    write_shard(tmp_path / "val" / "a.tar", GOOD)
    (tmp_path / "val" / name).write_text(text)
    [problem] = problems_of(tmp_path)
    assert f"{tmp_path}/val/{name} {message}" in problem


def test_names_that_differ_between_the_splits_are_refused(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "set")
    (tmp_path / "set" / "val" / "classes.json").write_text(json.dumps(["c0", "c1", "c3", "c2"]))
    [problem] = problems_of(tmp_path / "set", 4, ("train", "val"))
    assert "the class names of" in problem


def test_the_other_format_at_the_root_is_named_with_the_key_to_set(toy_set, packed, tmp_path):
    [problem] = problems_of(toy_set, 4)
    assert problem.endswith("val holds 4 class folders and no *.tar shard; set dataloader_cfg.data_format=folder")
    [problem] = toy_cfg(packed).problems(mixup_active=False, num_classes=4)
    assert problem.endswith("train holds 7 *.tar shards and no class folder; set dataloader_cfg.data_format=shards")
    [problem] = toy_cfg(packed, data_format="tar").problems(mixup_active=False, num_classes=4)
    assert problem == "dataloader_cfg.data_format=tar is unknown; use one of folder, shards"
    (tmp_path / "val").mkdir()
    [problem] = problems_of(tmp_path)
    assert "val holds no *.tar shard; expected" in problem
    [problem] = problems_of(tmp_path / "nowhere")
    assert f"no folder {tmp_path}/nowhere/val; expected {tmp_path}/nowhere/{{train,val}}/*.tar, WebDataset shards" in problem
