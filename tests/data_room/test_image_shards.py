"""Shards behind the loader: the same run as from folders, read by others, and refused with one message where they are broken."""

import contextlib
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from webdataset.tariterators import group_by_keys, tar_file_expander
from webdataset.writer import ShardWriter

from tests.data_room.configs import toy_cfg
from tests.data_room.shard_files import picture, problems_of, write_shard
from tests.data_room.test_byte_cache import Shelf
from tests.data_room.test_decoding import UNREADABLE
from tinyexp.data.batches import PaddedBatches
from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.image_folder import FolderFiles
from tinyexp.data.image_shards import MOST_OPEN, ShardFiles
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import DataError
from tinyexp.process import Axis


def epochs(cfg: DataLoaderCfg, replica: Axis, cache: ByteCache | None = None, *, first_batch: int = 0) -> list[torch.Tensor]:
    loader = cfg.build_train(replica, num_classes=4, seed=3, device_type="cpu", cache=cache)
    found = []
    for epoch in (0, 1):
        loader.start_epoch(epoch, first_batch=first_batch)
        found += [each for batch in loader for each in batch]
    return found


# --- the same run


@pytest.mark.parametrize(
    ("changes", "replica"),
    [({"num_workers": 2}, Axis()), ({"repeated_aug": False}, Axis(1, 2))],
    ids=["workers, repeated", "second replica"],
)
def test_training_batches_are_bit_equal_to_those_of_the_folder_also_after_a_resume_in_mid_epoch(
    toy_set, packed, changes, replica
):
    from_folder, from_shards = toy_cfg(toy_set, **changes), toy_cfg(packed, data_format="shards", **changes)
    want = epochs(from_folder, replica)
    got = epochs(from_shards, replica)
    assert len(got) == len(want) == 2 * 2 * 64 // 8 // replica.size
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    rest = epochs(from_shards, replica, first_batch=2)
    assert all(torch.equal(one, other) for one, other in zip(rest[: len(want) // 2 - 4], want[4 : len(want) // 2], strict=True))


def test_evaluation_batches_and_class_names_are_those_of_the_folder(toy_set, packed):
    for rank in range(2):
        both = [toy_cfg(toy_set), toy_cfg(packed, data_format="shards")]
        folder, shards = (cfg.build_val(Axis(rank, 2), num_classes=4, device_type="cpu") for cfg in both)
        assert folder.dataset.classes == shards.dataset.classes == ["c0", "c1", "c2", "c3"]  # pyright: ignore[reportAttributeAccessIssue]
        for one, other in zip(PaddedBatches(folder), PaddedBatches(shards), strict=True):
            assert all(torch.equal(*each) for each in zip(one, other, strict=True))


def test_the_second_epoch_comes_from_the_cache_under_keys_of_shard_member_size_and_time(packed, monkeypatch):
    cfg = toy_cfg(packed, data_format="shards", repeated_aug=False)
    plain = epochs(cfg, Axis())
    reads, read = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: (reads.append(arguments), read(*arguments))[1])
    cached = epochs(cfg, Axis(), shelf := Shelf())
    assert all(torch.equal(one, other) for one, other in zip(cached, plain, strict=True))
    assert (len(reads), len(shelf.kept)) == (64, 64)
    shard = packed / "train" / "train-000000.tar"
    [(key, value)] = [each for each in shelf.kept.items() if ":train-000000.tar: c0/0.jpeg:" in each[0]]
    assert key.endswith(f":{len(value)}:{shard.stat().st_mtime_ns}")


def test_an_unreadable_member_stops_the_run_or_is_skipped_and_named(tmp_path, case_images):
    members = []
    for index in range(3):
        members += [(f"{index}.jpg", picture()), (f"{index}.cls", b"0\n")]
    [name, *_] = UNREADABLE
    shard = write_shard(tmp_path / "val" / "a.tar", [*members, ("9.jpg", (case_images / name).read_bytes()), ("9.cls", b"0")])
    loaders = [
        toy_cfg(tmp_path, data_format="shards", on_bad_image=policy).build_val(Axis(), num_classes=1, device_type="cpu")
        for policy in ("stop", "skip")
    ]
    with pytest.raises(DataError, match=f"^{shard}: 9\\.jpg: the image cannot be decoded"):
        list(loaders[0])
    [(images, _)] = list(loaders[1])
    assert len(images) == 3
    assert loaders[1].bad_images
    assert loaders[1].bad_images.names() == [f"{shard}: 9.jpg"]


# --- read by others, and written by others


def test_the_webdataset_library_reads_our_shards(toy_set, packed):
    folder = FolderFiles(toy_set / "train")
    paths, samples = sorted((packed / "train").glob("*.tar")), []
    for path in paths:
        with open(path, "rb") as stream:  # its own WebDataset class leaves that to the garbage collector
            samples += group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}]))
    assert len(paths) == 7
    assert [sample["__key__"] for sample in samples] == [
        str(Path(path).relative_to(folder.root).with_suffix("")) for path in folder.paths
    ]
    assert [sample["jpeg"] for sample in samples] == [Path(path).read_bytes() for path in folder.paths]
    assert [int(sample["cls"]) for sample in samples] == folder.targets


def test_we_read_what_the_library_writes(tmp_path):
    (tmp_path / "val").mkdir()
    written = [
        {"__key__": f"some.folder/{index}", "jpg": picture(33 + index), "cls": index % 3, "json": {"a": 1}} for index in range(7)
    ]
    with ShardWriter(str(tmp_path / "val" / "part-%03d.tar"), maxcount=3, verbose=0) as writer:
        for sample in written:
            writer.write(sample)
    assert problems_of(tmp_path, 3) == []
    files = ShardFiles(tmp_path / "val")
    assert (files.targets.tolist(), files.classes) == ([0, 1, 2, 0, 1, 2, 0], ["0", "1", "2"])
    assert [files.read(position)[0] for position in range(7)] == [sample["jpg"] for sample in written]
    assert files.name(3) == f"{tmp_path}/val/part-001.tar: some.folder/3.jpg"


def test_long_and_foreign_names_and_the_members_that_are_none_are_understood(tmp_path):
    odd = f"{'tief/' * 30}größe.x/bild"
    junk = [("__meta__/x.jpg", b""), ("sub/._a.jpg", b"left by macOS"), ("README", b"")]
    write_shard(tmp_path / "val" / "a.tar", [*junk, (f"{odd}.JPG", picture()), (f"{odd}.seg.png", b""), (f"{odd}.cls", b"0")])
    files = ShardFiles(tmp_path / "val")
    assert [files.name(position) for position in range(len(files.targets))] == [f"{tmp_path}/val/a.tar: {odd}.JPG"]


# --- shards that stay open


def test_a_shard_that_changes_under_a_run_stops_it(packed, tmp_path):
    shutil.copytree(packed / "val", tmp_path / "val")
    files = ShardFiles(tmp_path / "val")
    write_shard(tmp_path / "val" / "val-000001.tar", [("1.png", picture()), ("1.cls", b"2")])
    with pytest.raises(DataError, match=r"val/val-000001\.tar: the shard was changed while the run reads it"):
        files.read(10)


def test_a_shard_that_is_written_to_in_place_while_it_is_open_stops_the_run(packed, tmp_path):
    shutil.copytree(packed / "val", tmp_path / "val")
    files, shard = ShardFiles(tmp_path / "val"), tmp_path / "val" / "val-000001.tar"
    content = shard.read_bytes()
    assert files.read(10)[0]
    shard.write_bytes(content[:600] + b"x" + content[601:])  # within the image, of the same size
    for _ in range(2):
        with pytest.raises(DataError, match=r"val/val-000001\.tar: the shard was changed while the run reads it"):
            files.read(10)
    assert num_open(tmp_path) == 0


def test_more_shards_than_may_stay_open_are_read_all_the_same_and_do_not_travel(tmp_path):
    for number in range(MOST_OPEN + 2):
        write_shard(tmp_path / "val" / f"{number:03}.tar", [("1.png", b"%d" % number), ("1.cls", b"0")])
    files = ShardFiles(tmp_path / "val")
    for position in [0, *range(MOST_OPEN + 2), 0]:
        assert files.read(position)[0] == b"%d" % position
    assert num_open(tmp_path) == MOST_OPEN
    assert pickle.loads(pickle.dumps(files)).read(1)[0] == b"1"
    files.__del__()
    assert num_open(tmp_path) == 0


def num_open(folder: Path) -> int:
    """Files below the folder that this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found
