import pytest

from tests.helpers.disk import full_beyond
from tinyexp.observability.growing_file import GrowingFile


def test_it_goes_on_where_it_ended_or_where_it_is_told_to(tmp_path):
    path = tmp_path / "file"
    with GrowingFile(path) as file:
        file.write(b"one ")
        assert path.read_bytes() == b"one "
    with GrowingFile(path) as file:
        file.write(b"two ", sync=True)
    assert path.read_bytes() == b"one two "
    with GrowingFile(path, end=4) as file:
        file.write(b"three")
    assert path.read_bytes() == b"one three"


def test_a_record_for_which_there_is_no_room_leaves_nothing_behind(tmp_path):
    with GrowingFile(tmp_path / "file") as file:
        file.write(b"one ")
        for _ in range(2):
            with full_beyond(6), pytest.raises(OSError):
                file.write(b"two ")
        file.write(b"three")
    assert (tmp_path / "file").read_bytes() == b"one three"
