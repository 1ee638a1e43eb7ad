"""The index of shards: when headers are read, where it is kept, and what it takes in memory."""

import errno
import gc
import itertools
import os
import pwd
import shutil
import tarfile
import weakref
from pathlib import Path

from tests.data_room.shard_files import picture, write_shard
from tinyexp.data.image_shards import ShardFiles
from tinyexp.data.shard_index import INDEX_NAME
from tinyexp.data.shard_members import read_samples


def test_headers_are_read_once_and_again_only_when_a_shard_changes(packed, tmp_path, monkeypatch):
    shutil.copytree(packed / "val", tmp_path / "val")
    (tmp_path / "val" / INDEX_NAME).unlink(missing_ok=True)
    opened, open_tar = [], tarfile.open

    def counted(*arguments, **options):
        opened.append(arguments)
        return open_tar(*arguments, **options)

    monkeypatch.setattr(tarfile, "open", counted)
    assert len(ShardFiles(tmp_path / "val").targets) == len(ShardFiles(tmp_path / "val").targets) == 11
    assert len(opened) == 2
    write_shard(tmp_path / "val" / "val-000001.tar", [("1.png", picture()), ("1.cls", b"2")])
    opened.clear()
    assert ShardFiles(tmp_path / "val").targets[10:].tolist() == [2]
    assert len(opened) == 2
    (tmp_path / "val" / INDEX_NAME).write_bytes(b"PK\3\4 no longer an index")
    assert ShardFiles(tmp_path / "val").targets[10:].tolist() == [2]


def test_the_files_of_a_rank_are_few_objects_that_forked_workers_share(tmp_path):
    members = [each for number in range(1000) for each in ((f"{number:03}.png", b""), (f"{number:03}.cls", b"%d" % number))]
    write_shard(tmp_path / "val" / "a.tar", members)
    for _from_headers_then_from_the_index in range(2):
        files = ShardFiles(tmp_path / "val")
        files.classes = []  # a name for each image here, so few in real sets that they do not matter
        assert (files.name(999), files.targets[999]) == (f"{tmp_path}/val/a.tar: 999.png", 999)
        assert num_reachable(files) < 100


def num_reachable(start: object) -> int:
    """Objects that it is made of, however deep; classes are not counted."""
    seen, waiting = {}, [start]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen[id(each)] = each
            waiting += gc.get_referents(each)
    return len(seen)


def test_while_headers_are_read_none_of_them_stays_in_memory(tmp_path, monkeypatch):
    made, make = weakref.WeakSet(), tarfile.TarInfo.__init__

    class Counted(tarfile.TarInfo):
        __slots__ = ("__weakref__",)

        def __init__(self, name: str = "") -> None:
            make(self, name)
            made.add(self)

    write_shard(tmp_path / "a.tar", [(f"{number}.{end}", b"0") for number in range(50) for end in ("jpg", "cls")])
    monkeypatch.setattr(tarfile.TarFile, "tarinfo", Counted)
    most, groupby = [], itertools.groupby
    monkeypatch.setattr(itertools, "groupby", lambda *arguments: (most.append(len(made)), groupby(*arguments))[1])
    assert len(read_samples(tmp_path / "a.tar")) == 50
    assert most[0] < 5


def test_where_the_shards_cannot_be_written_to_the_index_lies_in_the_users_cache(packed, tmp_path, monkeypatch):
    shutil.copytree(packed / "val", tmp_path / "val", ignore=shutil.ignore_patterns(INDEX_NAME))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    replace = os.replace

    def refuse(source, target):
        if Path(target).name == INDEX_NAME:  # root, whom a mode would not stop, runs these tests too
            raise PermissionError(errno.EACCES, "Permission denied", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    assert len(ShardFiles(tmp_path / "val").targets) == 11
    assert len(list((tmp_path / "cache" / "tinyexp").iterdir())) == 1
    assert sorted(path.name for path in (tmp_path / "val").iterdir()) == ["val-000000.tar", "val-000001.tar"]
    monkeypatch.setattr(tarfile, "open", None)  # which would fail
    assert len(ShardFiles(tmp_path / "val").targets) == 11


def test_a_user_without_a_home_folder_has_the_index_beside_the_shards_or_is_told_that_there_is_none(
    packed, tmp_path, monkeypatch, caplog
):
    shutil.copytree(packed / "val", tmp_path / "val", ignore=shutil.ignore_patterns(INDEX_NAME))
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a KeyError: a user whom the machine does not know
    assert len(ShardFiles(tmp_path / "val").targets) == 11
    assert (tmp_path / "val" / INDEX_NAME).exists()
    (tmp_path / "val" / INDEX_NAME).unlink()

    def refuse(source, target):
        raise PermissionError(errno.EACCES, "Permission denied", target)

    monkeypatch.setattr(os, "replace", refuse)
    assert len(ShardFiles(tmp_path / "val").targets) == 11
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.endswith(f"{tmp_path}/val: Permission denied; this user has no home folder; set XDG_CACHE_HOME")
