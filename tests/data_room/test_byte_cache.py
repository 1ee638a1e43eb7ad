from pathlib import Path

import numpy as np
import pytest

from tinyexp.data.byte_cache import ByteCache
from tinyexp.data.image_folder import ImageFolder
from tinyexp.errors import DataError


class Shelf:
    """The smallest cache: two methods over a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.kept[key] = value


def test_two_methods_make_a_cache_that_serves_the_second_epoch_verbatim(toy_set):
    cache: ByteCache = (shelf := Shelf())
    plain = ImageFolder(toy_set / "val", np.asarray)
    cached = ImageFolder(toy_set / "val", np.asarray, cache=cache)
    for _epoch in range(2):
        for index in range(len(plain)):
            assert np.array_equal(plain[index][0], cached[index][0])
    assert shelf.kept == {path: Path(path).read_bytes() for path, _ in plain.samples}


def test_images_in_the_cache_need_no_file(tmp_path, case_images):
    (tmp_path / "c0").mkdir()
    picture = tmp_path / "c0" / "a.JPEG"
    picture.write_bytes((case_images / "plain_rgb.JPEG").read_bytes())
    folder = ImageFolder(tmp_path, np.asarray, cache=Shelf())
    first, _ = folder[0]
    picture.unlink()
    assert np.array_equal(folder[0][0], first)


@pytest.mark.parametrize("name", ["zero_bytes.JPEG", "truncated_tail.JPEG"])
def test_an_unreadable_file_is_named_and_never_kept(tmp_path, case_images, name):
    (tmp_path / "c0").mkdir()
    (tmp_path / "c0" / name).write_bytes((case_images / name).read_bytes())
    folder = ImageFolder(tmp_path, np.asarray, cache=(shelf := Shelf()))
    with pytest.raises(DataError, match=str(tmp_path / "c0" / name)):
        folder[0]
    assert shelf.kept == {}


def test_damaged_bytes_from_the_cache_are_reported_with_the_path(tmp_path, case_images):
    (tmp_path / "c0").mkdir()
    picture = tmp_path / "c0" / "a.JPEG"
    picture.write_bytes((case_images / "plain_rgb.JPEG").read_bytes())
    shelf = Shelf()
    shelf.put(str(picture), (case_images / "truncated_half.JPEG").read_bytes())
    with pytest.raises(DataError, match=str(picture)):
        ImageFolder(tmp_path, np.asarray, cache=shelf)[0]
