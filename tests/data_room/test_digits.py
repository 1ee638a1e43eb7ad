import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tinyexp.data import digits
from tinyexp.data.digits import is_complete, write_digits
from tinyexp.errors import DataError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def names(root: Path, split: str) -> set[int]:
    return {int(path.stem) for path in root.glob(f"{split}/*/*.png")}


def test_every_digit_lies_once_in_a_split_of_about_80_to_20(root):
    train, val = names(root, "train"), names(root, "val")
    assert train | val == set(range(1797))
    assert not train & val
    for digit in range(10):
        in_train, in_val = (len(list(root.glob(f"{split}/{digit}/*.png"))) for split in ("train", "val"))
        assert in_train / (in_train + in_val) == pytest.approx(0.8, abs=0.005)


def test_a_picture_is_the_enlarged_digit_in_32_by_32_rgb(root):
    from sklearn.datasets import load_digits

    pixels, digit_of = load_digits(return_X_y=True)
    for index in (0, 900, 1796):
        [picture] = root.glob(f"*/{digit_of[index]}/{index}.png")
        image = Image.open(picture)
        assert (image.mode, image.size) == ("RGB", (32, 32))
        small = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX)).ravel()
        assert np.corrcoef(small, pixels[index])[0, 1] > 0.95


def test_the_split_is_the_same_on_every_machine(root):
    assert sorted(names(root, "val"))[:6] == [3, 4, 5, 7, 11, 16]


def test_a_complete_folder_is_left_alone(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert write_digits(root) == root
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_an_interrupted_write_leaves_nothing_behind_and_the_next_one_succeeds(tmp_path, monkeypatch):
    save, saved = Image.Image.save, []

    def save_some(image: Image.Image, path: Path) -> None:
        if len(saved) == 500:
            raise KeyboardInterrupt
        saved.append(path)
        save(image, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Image.Image, "save", save_some)
        write_digits(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []
    assert is_complete(write_digits(tmp_path / "digits"))


def test_a_folder_with_something_else_is_refused_and_kept(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match=r"digits exists and is not the folder of 1,797 digits .*; remove it"):
        write_digits(tmp_path / "digits")
    assert [path.name for path in tmp_path.rglob("*")] == ["digits", "mine.txt"]


def test_a_place_that_cannot_be_written_ends_the_command_with_one_message(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["digits", str(tmp_path / "file" / "digits")])
    with pytest.raises(SystemExit) as left:
        digits.main()
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (3, "")
    assert printed.err.startswith("error: the digits cannot be written to ") and printed.err.count("\n") == 1


def test_two_writers_at_once_agree(tmp_path):
    command = [sys.executable, "-m", digits.__name__, str(tmp_path / "digits")]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert answers[0] == answers[1]
    assert f"1,797 digits in {tmp_path}/digits" in answers[0]
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
