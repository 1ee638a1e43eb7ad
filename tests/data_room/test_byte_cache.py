import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tinyexp.data import images
from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.decoding import decode_rgb
from tinyexp.data.image_folder import FolderFiles
from tinyexp.data.images import Images
from tinyexp.errors import DataError


class Shelf:
    """The smallest cache: two methods over a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.requests = 0

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.requests += 1
        return [self.kept.get(key) for key in keys]

    def put_many(self, values: Mapping[str, bytes]) -> None:
        self.kept.update(values)


def test_two_methods_make_a_cache_that_serves_the_second_epoch_verbatim(toy_set):
    cache: ByteCache = (shelf := Shelf())
    plain = Images(FolderFiles(toy_set / "val"), np.asarray)
    cached = Images(FolderFiles(toy_set / "val"), np.asarray, cache=cache)
    for _epoch in range(2):
        for index in range(len(plain)):
            assert np.array_equal(plain[index][0], cached[index][0])
    for path, (key, value) in zip(FolderFiles(toy_set / "val").paths, shelf.kept.items(), strict=True):
        found = Path(path).stat()
        assert key.endswith(f":{Path(path).relative_to(toy_set / 'val')}:{found.st_size}:{found.st_mtime_ns}")
        assert value == Path(path).read_bytes()


def test_a_batch_is_one_request_and_decodes_each_image_once(toy_set, monkeypatch):
    decoded = []

    def decode(data: bytes, *, path: str, **options):
        decoded.append(path)
        return decode_rgb(data, path=path, **options)

    monkeypatch.setattr(images, "decode_rgb", decode)
    folder = Images(FolderFiles(toy_set / "val"), np.asarray, cache=(shelf := Shelf()))
    batch = [0, 0, 0, 5, 5, 5, 2]
    for samples in (folder.__getitems__(batch), folder.__getitems__(batch)):
        assert all(np.array_equal(image, folder[index][0]) for (image, _), index in zip(samples, batch, strict=True))
    assert len(decoded) == 3 + 7 + 3 + 7
    assert shelf.requests == 1 + 7 + 1 + 7
    assert len(shelf.kept) == 3


def test_a_changed_file_and_another_set_at_the_same_place_have_other_keys(tmp_path, case_images):
    root, shelf = tmp_path / "set", Shelf()
    picture = root / "c0" / "a.JPEG"
    picture.parent.mkdir(parents=True)
    for name in ("plain_rgb.JPEG", "gray_jpeg.JPEG"):
        picture.write_bytes((case_images / name).read_bytes())
        for _epoch in range(2):
            image, _ = Images(FolderFiles(root), np.asarray, cache=shelf)[0]
            assert np.array_equal(image, np.asarray(decode_rgb((case_images / name).read_bytes(), path=name)))
    os.utime(picture, ns=(0, 0))
    Images(FolderFiles(root), np.asarray, cache=shelf)[0]
    (tmp_path / "link").symlink_to(root)
    Images(FolderFiles(tmp_path / "link"), np.asarray, cache=shelf)[0]
    assert len(shelf.kept) == 4


def test_loader_workers_ask_for_size_and_time_of_a_file_once_in_a_run(toy_set, monkeypatch):
    asked = multiprocessing.Value("i")
    stat = os.stat

    def counted(path, **options):
        if isinstance(path, str) and path.endswith(".JPEG"):
            with asked.get_lock():
                asked.value += 1
        return stat(path, **options)

    folder = Images(FolderFiles(toy_set / "val"), np.array, cache=Shelf())
    monkeypatch.setattr(os, "stat", counted)
    for _epoch in range(2):
        list(DataLoader(folder, batch_size=2, num_workers=2))
    assert asked.value == 11


def test_images_in_the_cache_need_no_file(tmp_path, case_images):
    (tmp_path / "c0").mkdir()
    picture = tmp_path / "c0" / "a.JPEG"
    picture.write_bytes((case_images / "plain_rgb.JPEG").read_bytes())
    folder = Images(FolderFiles(tmp_path), np.asarray, cache=Shelf())
    first, _ = folder[0]
    picture.unlink()
    assert np.array_equal(folder[0][0], first)


@pytest.mark.parametrize("name", ["zero_bytes.JPEG", "truncated_tail.JPEG"])
def test_an_unreadable_file_is_named_and_never_kept(tmp_path, case_images, name):
    (tmp_path / "c0").mkdir()
    (tmp_path / "c0" / name).write_bytes((case_images / name).read_bytes())
    folder = Images(FolderFiles(tmp_path), np.asarray, cache=(shelf := Shelf()))
    with pytest.raises(DataError, match=str(tmp_path / "c0" / name)):
        folder[0]
    assert shelf.kept == {}


def test_damaged_bytes_from_the_cache_are_reported_with_the_path(tmp_path, case_images):
    (tmp_path / "c0").mkdir()
    picture = tmp_path / "c0" / "a.JPEG"
    picture.write_bytes((case_images / "plain_rgb.JPEG").read_bytes())
    folder = Images(FolderFiles(tmp_path), np.asarray, cache=(shelf := Shelf()))
    folder[0]
    shelf.kept = {key: (case_images / "truncated_half.JPEG").read_bytes() for key in shelf.kept}
    with pytest.raises(DataError, match=str(picture)):
        folder[0]
