import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torchvision import datasets

from tinyexp.data.image_folder import FolderFiles
from tinyexp.data.sources import root_problems
from tinyexp.errors import DataError


@pytest.fixture
def split(toy_set, tmp_path) -> Path:
    """A copy of the 11 validation images, with folders within the classes and links: 5 images more."""
    split = shutil.copytree(toy_set / "val", tmp_path / "set" / "val")
    for name in ("c0/b", "c0/a/x", "c0/a-b", "c0/a.b"):
        (split / name).mkdir(parents=True)
        shutil.copy(split / "c3" / "0.JPEG", split / name / "9.jpg")
    (split / "c1" / "link.png").symlink_to(split / "c3" / "0.JPEG")
    (split / "c2" / "note.txt").touch()
    return split


def test_files_and_their_order_are_those_of_torchvision_in_folders_and_behind_links(split, tmp_path):
    elsewhere = shutil.move(split / "c0" / "b", tmp_path / "elsewhere")
    (split / "c0" / "b").symlink_to(elsewhere)
    (split / "c1" / "same").symlink_to(elsewhere)
    (split / "c4").symlink_to(elsewhere)
    (split / "c2" / "nowhere.png").symlink_to(tmp_path / "nowhere")
    (split / "c2" / "itself.png").symlink_to("itself.png")
    files, theirs = FolderFiles(split), datasets.ImageFolder(split)
    assert list(zip(files.paths, files.targets, strict=True)) == theirs.samples
    assert len(files.paths) == 20


def refused(path: Path, errors: list[int]) -> Callable:
    """`os.scandir`, which fails at this path with one error after the other."""
    scan = os.scandir

    def scandir(asked: str):
        if str(asked) == str(path) and errors:
            number = errors.pop()
            raise OSError(number, os.strerror(number), str(asked))
        return scan(asked)

    return scandir


def test_a_folder_that_cannot_be_listed_is_an_error_before_and_in_a_run(split, monkeypatch):
    monkeypatch.setattr(os, "scandir", refused(split / "c0" / "a", [errno.EACCES] * 3))  # root, whom a mode would not stop
    with pytest.raises(DataError) as stop:
        FolderFiles(split)
    assert str(stop.value).startswith(f"{split}/c0/a cannot be listed: Permission denied; its images would be missing")
    shutil.rmtree(split / "c0" / "b")
    for path in (*(split / "c0").glob("*.JPEG"), split / "c0" / "a-b" / "9.jpg", split / "c0" / "a.b" / "9.jpg"):
        path.unlink()
    [problem] = root_problems(split.parent, data_format="folder", splits=("val",), num_classes=4)
    assert problem.startswith(f"dataloader_cfg.data_root: {split}/c0/a cannot be listed: Permission denied")


@pytest.mark.parametrize("name", ["", "c2"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_listing_that_fails_once_is_tried_again_and_one_that_fails_twice_is_an_error(split, monkeypatch, name, number):
    monkeypatch.setattr(os, "scandir", refused(split / name, [number]))
    assert len(FolderFiles(split).paths) == 16
    monkeypatch.setattr(os, "scandir", refused(split / name, [number] * 2))
    with pytest.raises(DataError, match=f"{os.strerror(number)}"):
        FolderFiles(split)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"c1/loop": "."}, "c1/loop leads back to {split}/c1, "),
        ({"c1/up": ".."}, "c1/up leads back to {split}, "),
        ({"c0/a/in": "../../c3", "c3/in": "../c0/a"}, "c0/a/in/in leads back to {split}/c0/a, "),
    ],
    ids=["itself", "the split", "each other"],
)
def test_a_link_that_leads_in_a_circle_is_refused_and_named(split, links, message):
    for name, target in links.items():
        (split / name).symlink_to(target)
    with pytest.raises(DataError) as stop:
        FolderFiles(split)
    assert str(stop.value).startswith(f"{split}/" + message.format(split=split))


def test_a_link_to_a_folder_that_cannot_be_reached_is_an_error_and_one_to_a_file_waits_until_it_is_read(split, monkeypatch):
    class Unreachable:
        def __init__(self, name: str) -> None:
            self.name, self.path = name, f"{split}/c2/{name}"

        def is_dir(self) -> bool:
            raise PermissionError(errno.EACCES, "Permission denied", self.path)

    scan, names = os.scandir, ["far.png"]

    class Entries(list):
        __enter__ = list.copy

        def __exit__(self, *_: object) -> None:
            pass

    def scandir(path: str):
        return Entries([Unreachable(name) for name in names]) if str(path).endswith("c2") else scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [path for path in FolderFiles(split).paths if "c2" in path] == [f"{split}/c2/far.png"]
    names.append("far")
    with pytest.raises(DataError, match=r"c2/far cannot be listed: Permission denied"):
        FolderFiles(split)
