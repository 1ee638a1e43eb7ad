import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from tests.data_room.test_decoding import UNREADABLE
from tinyexp.data.image_folder import FolderFiles, class_folders, expected_layout
from tinyexp.data.images import Images
from tinyexp.data.sources import root_problems
from tinyexp.errors import DataError


def folder_problems(root: Path, *, splits: tuple[str, ...], num_classes: int) -> list[str]:
    return root_problems(root, data_format="folder", splits=splits, num_classes=num_classes)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_is_reported_with_its_full_path_and_the_reason(case_images, tmp_path, name):
    (tmp_path / "c1").mkdir()
    picture = tmp_path / "c1" / name
    picture.write_bytes((case_images / name).read_bytes())
    with pytest.raises(DataError, match=f"{picture}: .*{UNREADABLE[name]}"):
        Images(FolderFiles(tmp_path), np.asarray)[0]


def test_a_file_that_vanished_is_reported_with_its_path(tmp_path):
    (tmp_path / "c0").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "c0" / "a.png")
    folder = Images(FolderFiles(tmp_path), np.asarray)
    (tmp_path / "c0" / "a.png").unlink()
    with pytest.raises(DataError, match=r"c0/a\.png: the file cannot be read: No such file"):
        folder[0]


def test_samples_and_classes_are_those_of_torchvision(toy_set):
    files, theirs = FolderFiles(toy_set / "train"), datasets.ImageFolder(toy_set / "train", np.asarray)
    ours = Images(files, np.asarray)
    assert list(zip(files.paths, files.targets, strict=True)) == theirs.samples
    assert ours.classes == theirs.classes == class_folders(toy_set / "train") == ["c0", "c1", "c2", "c3"]
    assert all(np.array_equal(ours[index][0], theirs[index][0]) for index in range(0, 64, 16))


def test_a_missing_folder_and_an_empty_class_say_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"nowhere/train.*\n.*<class>"):
        Images(FolderFiles(tmp_path / "nowhere" / "train"), np.asarray)
    (tmp_path / "train" / "c0").mkdir(parents=True)
    with pytest.raises(DataError, match=r"c0(.|\n)*<class>"):
        Images(FolderFiles(tmp_path / "train"), np.asarray)


def test_a_good_data_root_has_no_problem(toy_set):
    assert folder_problems(toy_set, splits=("train", "val"), num_classes=4) == []


def test_missing_splits_are_one_problem_with_absolute_paths_and_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half" / "train").mkdir(parents=True)
    for root, absent in (("nowhere", ["train", "val"]), ("half", ["val"])):
        [problem] = folder_problems(Path(root), splits=("train", "val"), num_classes=4)
        assert all(str(tmp_path / root / split) in problem for split in absent)
        for part in (expected_layout(tmp_path / root), "dataloader_cfg.data_root", "IMAGENET_HOME"):
            assert part in problem
    assert str(tmp_path / "half" / "train") + " " not in problem


def test_an_evaluation_needs_no_training_folder(tmp_path):
    (tmp_path / "val" / "c0").mkdir(parents=True)
    (tmp_path / "val" / "c0" / "a.png").touch()
    assert folder_problems(tmp_path, splits=("val",), num_classes=1) == []


def test_an_empty_class_is_a_problem_that_names_its_split_before_any_process_starts(tmp_path):
    for name in ("train/a", "train/b", "val/a", "val/b/deeper"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("train/a/0.png", "train/b/0.png", "val/a/note.txt", "val/b/deeper/0.PNG"):
        (tmp_path / name).touch()
    [problem] = folder_problems(tmp_path, splits=("train", "val"), num_classes=2)
    assert problem.startswith("dataloader_cfg.data_root: a class folder holds no image (.jpg, ")
    assert f"): {tmp_path}/val/a; put images there, or remove it from train and val; expected" in problem
    (tmp_path / "train" / "b" / "0.png").unlink()
    (tmp_path / "train" / "a" / "0.png").unlink()
    first, _ = folder_problems(tmp_path, splits=("train", "val"), num_classes=2)
    assert (
        f"2 class folders hold no image (.jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff, .webp, .gif): {tmp_path}/train/a, b;"
        in first
    )


def test_different_classes_in_train_and_val_are_named(tmp_path):
    for name in ("train/a", "train/b", "val/b", "val/c", "val/d", "val/e", "val/f"):
        (tmp_path / name).mkdir(parents=True)
    [problem] = folder_problems(tmp_path, splits=("train", "val"), num_classes=2)
    assert "only train has a;" in problem
    assert "only val has c, d, e and 1 more;" in problem


def test_another_number_of_classes_names_the_key_and_the_value_to_set(toy_set):
    [problem] = folder_problems(toy_set, splits=("train", "val"), num_classes=1000)
    assert "4 class folders, but module_cfg.num_classes=1000; set module_cfg.num_classes=4" in problem


def test_a_split_without_class_folders_says_so(tmp_path):
    (tmp_path / "val").mkdir()
    [problem] = folder_problems(tmp_path, splits=("val",), num_classes=4)
    assert "holds no class folder" in problem


def test_a_folder_that_may_not_be_listed_is_a_problem(tmp_path, monkeypatch):
    def refuse(path: os.PathLike) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "val").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)  # root, whom a mode would not stop, runs these tests too
    [problem] = folder_problems(tmp_path, splits=("val",), num_classes=4)
    monkeypatch.undo()
    assert f"{tmp_path}/val cannot be listed: Permission denied" in problem


def test_hidden_files_and_folders_are_neither_images_nor_classes(tmp_path, toy_set):
    tmp_path = tmp_path / ".hidden" / "set"
    for split in ("train", "val"):
        shutil.copytree(toy_set / split, tmp_path / split)
        for folder in (".ipynb_checkpoints", "c0/.ipynb_checkpoints", "c1/deep/.AppleDouble/deeper"):
            (tmp_path / split / folder).mkdir(parents=True)
            shutil.copy(toy_set / "val" / "c0" / "0.JPEG", tmp_path / split / folder / "0.JPEG")
        (tmp_path / split / "c0" / "._0.JPEG").write_bytes(b"left by macOS")
    assert folder_problems(tmp_path, splits=("train", "val"), num_classes=4) == []
    folder = Images(FolderFiles(tmp_path / "val"), np.asarray)
    assert folder.classes == ["c0", "c1", "c2", "c3"]
    assert len(folder) == 11
    for path in (tmp_path / "val" / "c1").glob("*.JPEG"):
        path.unlink()
    with pytest.raises(DataError, match=r"c1(.|\n)*<class>"):
        FolderFiles(tmp_path / "val")


def test_a_pipe_or_a_device_under_an_image_name_does_not_stop_the_loader_for_ever(tmp_path):
    (tmp_path / "c0").mkdir()
    os.mkfifo(tmp_path / "c0" / "a.png")
    with pytest.raises(DataError, match=r"c0/a\.png: the file cannot be read: it is no regular file"):
        Images(FolderFiles(tmp_path), np.asarray)[0]


def test_a_read_error_is_tried_once_more(tmp_path, monkeypatch):
    (tmp_path / "c0").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "c0" / "a.png")
    folder, failures, open_file = Images(FolderFiles(tmp_path), np.asarray), [1], os.open

    def flaky(path, *arguments, **options):
        if failures and str(path).endswith("a.png"):
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", flaky)
    assert folder[0][1] == 0
    failures += [1, 1]
    with pytest.raises(DataError, match=r"c0/a\.png: the file cannot be read: Input/output error"):
        folder[0]
