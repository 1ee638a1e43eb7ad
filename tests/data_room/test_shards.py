import os
import sys
from pathlib import Path, PurePosixPath

import pytest

from tinyexp.data import shards
from tinyexp.data.image_shards import ShardFiles, read_class_names
from tinyexp.data.shards import free_key, main, pack
from tinyexp.errors import DataError


def test_the_same_images_give_the_same_bytes(toy_set, tmp_path):
    for name in ("one", "other"):
        pack(toy_set, tmp_path / name, images_per_shard=30)
    written = [sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*")) for name in ("one", "other")]
    assert written[0] == written[1]
    assert [path.name for path in written[0] if path.suffix == ".tar"] == [
        *("train-000000.tar", "train-000001.tar", "train-000002.tar"),
        "val-000000.tar",
    ]
    for path in written[0]:
        if path.suffix:
            assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes()


def test_the_folder_gets_its_name_when_all_of_it_is_on_disk(toy_set, tmp_path, monkeypatch):
    order, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda number: (order.append(os.readlink(f"/proc/self/fd/{number}")), fsync(number))[1])
    monkeypatch.setattr(os, "rename", lambda source, target: (order.append(f"named {target}"), rename(source, target))[1])
    pack(toy_set, tmp_path / "out")
    draft = Path(order[0]).parents[1]
    synced = [str(Path(each).relative_to(draft)) if each.startswith(f"{draft}/") else each for each in order]
    synced[2] = synced[2].rpartition("-")[0]  # the temporary name
    assert synced == [
        *("train/train-000000.tar", "val/val-000000.tar", ".classes.json"),
        *("train", "val", str(draft), f"named {tmp_path}/out", str(tmp_path)),
    ]


def test_dots_and_equal_stems_give_keys_of_their_own(tmp_path):
    assert free_key(PurePosixPath("a.b/c.d.jpg"), set()) == "a.b/c_d"
    names = ("a.jpg", "a.png", "a_png.jpg", "x.y.png", "x_y.jpg")
    (tmp_path / "set" / "val" / "c0").mkdir(parents=True)
    for name in names:
        (tmp_path / "set" / "val" / "c0" / name).write_bytes(name.encode())
    assert pack(tmp_path / "set", tmp_path / "out") == {"val": 5}
    files = ShardFiles(tmp_path / "out" / "val")
    assert [files.read(position)[0].decode() for position in range(5)] == sorted(names)
    assert read_class_names(tmp_path / "out" / "val") == ["c0"]


def test_what_exists_is_not_touched_and_what_is_no_set_is_said(toy_set, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="out exists; remove it"):
        pack(toy_set, tmp_path / "out")
    with pytest.raises(DataError, match="nowhere holds neither train nor val; expected"):
        pack(tmp_path / "nowhere", tmp_path / "new")
    pack(toy_set, tmp_path / "packed")
    with pytest.raises(DataError, match=r"packed/train holds 1 \*\.tar shards and no class folder: it is packed already"):
        pack(tmp_path / "packed", tmp_path / "again")
    for name in ("train/a", "val/b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.jpg").touch()
    with pytest.raises(DataError, match=r"the class folders of .*/train and .*/val differ"):
        pack(tmp_path / "set", tmp_path / "new")
    (tmp_path / "meta" / "val" / "__x__").mkdir(parents=True)
    (tmp_path / "meta" / "val" / "__x__" / "1.jpg").touch()
    with pytest.raises(DataError, match="a class named __x__"):
        pack(tmp_path / "meta", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta", "out", "packed", "set"]


def test_shards_never_lie_among_the_classes_that_they_are_packed_from(tmp_path):
    (tmp_path / "set" / "train" / "a").mkdir(parents=True)
    (tmp_path / "set" / "train" / "a" / "1.jpg").touch()
    (tmp_path / "link").symlink_to(tmp_path / "set" / "train")
    for out in (tmp_path / "set" / "train" / "out", tmp_path / "set" / "train" / "a" / "out", tmp_path / "link" / "out"):
        with pytest.raises(DataError, match=r"lies in .*/set/train and would count as a class of it"):
            pack(tmp_path / "set", out)
    assert [path.name for path in (tmp_path / "set" / "train").rglob("*")] == ["a", "1.jpg"]


def test_an_interrupted_or_failed_packing_leaves_nothing_behind(toy_set, tmp_path, monkeypatch, capsys):
    read, reads = shards.FolderFiles.read, []

    def interrupted(files, position):
        reads.append(position)
        if len(reads) == 30:
            raise KeyboardInterrupt
        return read(files, position)

    monkeypatch.setattr(shards.FolderFiles, "read", interrupted)
    monkeypatch.setattr(sys, "argv", ["shards", "pack", str(toy_set), str(tmp_path / "out"), "--images-per-shard", "8"])
    with pytest.raises(SystemExit) as left:
        main()
    assert (left.value.code, capsys.readouterr().err) == (130, "interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_how_to_use_what_it_has_written(toy_set, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["shards", "pack", str(toy_set), str(tmp_path / "out")])
    main()
    keys = f"dataloader_cfg.data_root={tmp_path}/out dataloader_cfg.data_format=shards"
    assert capsys.readouterr().out == f"64 images of train and 11 images of val in {tmp_path}/out; use {keys}\n"
    with pytest.raises(SystemExit) as left:
        main()
    said = f"error: {tmp_path}/out exists; remove it, or choose another folder for the shards\n"
    assert (left.value.code, capsys.readouterr().err) == (3, said)
    monkeypatch.setattr(sys, "argv", ["shards", "pack", "a", "b", "--images-per-shard", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "'0' is too small or no whole number; use 1 or more" in capsys.readouterr().err
