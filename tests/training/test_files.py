import contextlib
import io
import json
import shutil
from pathlib import Path

from tests.data_room.configs import toy_cfg
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.redis_cache.client import RedisByteCache
from tinyexp.redis_cache.service import Service
from tinyexp.redis_cache.shards import Shard, Shards
from tinyexp.training.files import FilesRecord


def exchanged() -> list[str]:
    accelerator = build_accelerator()
    return accelerator.exchange(f"of rank {accelerator.world.rank}" * (1 + accelerator.world.rank))


def test_every_rank_gets_the_texts_of_all_in_rank_order():
    assert run_on_ranks(exchanged, 2) == [["of rank 0", "of rank 1of rank 1"]] * 2


def record_of_two_epochs(root: Path, folder: Path) -> tuple[list[dict], dict, str]:
    accelerator = build_accelerator()
    cfg = toy_cfg(root, on_bad_image="skip", repeated_aug=False, train_batch_size_per_device=1)
    loader = cfg.build_train(accelerator.replica, num_classes=4, seed=0, device_type="cpu")
    val_loader = cfg.build_val(accelerator.replica, num_classes=4, device_type="cpu")
    cache = RedisByteCache(Shards((Shard(path="/nowhere/socket"),), b"seal"))  # every read of it is a miss
    files, rows = FilesRecord(accelerator, loader, Service(cache, ""), folder), []
    for epoch in range(2):
        loader.start_epoch(epoch)
        list(loader)
        cache.get_many(["a"] * (1 + accelerator.world.rank))
        rows.append(files.end_epoch())
    cache.get_many(["a"] * 5)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        files.end_unfinished_epoch()
    return rows, files.summary(val_loader), said.getvalue()


def test_counts_and_unreadable_files_are_those_of_all_ranks(tmp_path, toy_set):
    for split in ("train", "val"):
        shutil.copytree(toy_set / split, tmp_path / split)
    bad = [tmp_path / "train" / f"c{index}" / "bad.JPEG" for index in (1, 2)]
    for path in bad:
        path.touch()
    names = [str(path) for path in bad]
    results = run_on_ranks(record_of_two_epochs, 2, tmp_path, tmp_path / "run")
    for rows, summary, _ in results:
        assert [row["cache_misses"] for row in rows] == [3, 3]
        assert [row["train_unreadable"] for row in rows] == [2, 2]
        assert summary["cache"]["misses"] == 6 + 10
        assert summary["cache"]["errors"] == 2  # one a rank: then the server is left alone
        assert summary["unreadable_train"] == {"count": 2, "files": names}
        assert summary["unreadable_val"] == {"count": 0, "files": []}
        json.dumps([rows, summary])
    line = "Cache, in the unfinished epoch: 0 hits (0.0%), 10 misses, 0 refused, 0 errors, 0.0 MB from memory\n"
    assert [said for _, _, said in results] == [line, ""]


def test_a_run_without_cache_that_stops_at_bad_files_has_nothing_to_say(toy_set, tmp_path):
    accelerator = build_accelerator(accelerator="cpu")
    cfg = toy_cfg(toy_set)
    loader = cfg.build_train(accelerator.replica, num_classes=4, seed=0, device_type="cpu")
    val_loader = cfg.build_val(accelerator.replica, num_classes=4, device_type="cpu")
    files = FilesRecord(accelerator, loader, None, tmp_path)
    files.end_unfinished_epoch()
    assert (files.end_epoch(), files.summary(val_loader)) == ({}, {})
    assert list(tmp_path.iterdir()) == []
