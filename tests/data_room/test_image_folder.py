import errno
import os

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from tinyexp.data.image_folder import ImageFolder, class_folders, decode_rgb, expected_layout, folder_problems
from tinyexp.errors import DataError

PLAIN = [(220, 30, 30), (30, 200, 40), (40, 60, 210), (128, 128, 128)]
GREY = [(72, 72, 72), (182, 182, 182), (72, 72, 72), (182, 182, 182)]
COLOURS = {  # file: (mean colours of the quarters, tolerance), from the table of the cases
    "plain_rgb.JPEG": (PLAIN, 3),
    "cmyk_adobe.JPEG": ([(255, 25, 25), (25, 255, 25), (25, 25, 255), (127, 127, 127)], 12),
    "png_inside.JPEG": (PLAIN, 3),
    "gray_jpeg.JPEG": (GREY, 3),
    "gray_png_inside.JPEG": (GREY, 3),
}
UNREADABLE = {
    "truncated_half.JPEG": "Truncated File Read",
    "truncated_tail.JPEG": "image file is truncated",
    "header_only.JPEG": "starts with",
    "zero_bytes.JPEG": "the file is empty",
    "html_error_page.JPEG": r"starts with b'<",
}


def quarter_means(image: Image.Image) -> list[tuple[float, ...]]:
    pixels = np.asarray(image).astype(float)
    top, bottom = np.split(pixels, 2, axis=0)
    quarters = [*np.split(top, 2, axis=1), *np.split(bottom, 2, axis=1)]
    return [tuple(quarter.mean(axis=(0, 1))) for quarter in quarters]


@pytest.mark.parametrize("name", COLOURS)
def test_unusual_files_arrive_as_rgb_with_their_true_colours(case_images, name):
    want, tolerance = COLOURS[name]
    image = decode_rgb((case_images / name).read_bytes(), path=name)
    assert (image.mode, image.size) == ("RGB", (64, 48))
    np.testing.assert_allclose(quarter_means(image), want, atol=tolerance)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_is_reported_with_its_full_path_and_the_reason(case_images, tmp_path, name):
    (tmp_path / "c1").mkdir()
    picture = tmp_path / "c1" / name
    picture.write_bytes((case_images / name).read_bytes())
    with pytest.raises(DataError, match=f"{picture}: .*{UNREADABLE[name]}"):
        ImageFolder(tmp_path, np.asarray)[0]


def test_a_format_outside_the_list_is_not_decoded(tmp_path):
    picture = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8)).save(picture, format="PPM")
    with pytest.raises(DataError, match=r"no JPEG, PNG, WEBP, BMP, GIF, TIFF image"):
        decode_rgb(picture.read_bytes(), path=str(picture))


def test_a_file_that_vanished_is_reported_with_its_path(tmp_path):
    (tmp_path / "c0").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "c0" / "a.png")
    folder = ImageFolder(tmp_path, np.asarray)
    (tmp_path / "c0" / "a.png").unlink()
    with pytest.raises(DataError, match=r"c0/a\.png: the file cannot be read: No such file"):
        folder[0]


def test_decoding_warns_about_no_file(tmp_path):
    palette = Image.new("RGB", (8, 8)).quantize(4)
    palette.save(tmp_path / "a.png", transparency=b"\x00\x80")  # Pillow warns when such a picture becomes RGB
    assert decode_rgb((tmp_path / "a.png").read_bytes(), path="a.png").mode == "RGB"


def test_samples_and_classes_are_those_of_torchvision(toy_set):
    ours, theirs = ImageFolder(toy_set / "train", np.asarray), datasets.ImageFolder(toy_set / "train", np.asarray)
    assert ours.samples == theirs.samples
    assert ours.classes == theirs.classes == class_folders(toy_set / "train") == ["c0", "c1", "c2", "c3"]
    assert all(np.array_equal(ours[index][0], theirs[index][0]) for index in range(0, 64, 16))


def test_a_missing_folder_and_an_empty_class_say_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"nowhere/train.*\n.*<class>"):
        ImageFolder(tmp_path / "nowhere" / "train", np.asarray)
    (tmp_path / "train" / "c0").mkdir(parents=True)
    with pytest.raises(DataError, match=r"c0(.|\n)*<class>"):
        ImageFolder(tmp_path / "train", np.asarray)


def test_a_good_data_root_has_no_problem(toy_set):
    assert folder_problems(toy_set, splits=("train", "val"), num_classes=4) == []


def test_missing_splits_are_one_problem_with_absolute_paths_and_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half" / "train").mkdir(parents=True)
    for root, absent in (("nowhere", ["train", "val"]), ("half", ["val"])):
        [problem] = folder_problems(type(tmp_path)(root), splits=("train", "val"), num_classes=4)
        assert all(str(tmp_path / root / split) in problem for split in absent)
        for part in (expected_layout(tmp_path / root), "dataloader_cfg.data_root", "IMAGENET_HOME"):
            assert part in problem
    assert str(tmp_path / "half" / "train") + " " not in problem


def test_an_evaluation_needs_no_training_folder(tmp_path):
    (tmp_path / "val" / "c0").mkdir(parents=True)
    assert folder_problems(tmp_path, splits=("val",), num_classes=1) == []


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
