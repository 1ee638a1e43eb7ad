import csv

import pytest
from PIL import Image

from tinyexp.observability.evaluation import (
    ScoredImage,
    confused_pairs,
    per_class,
    worst_first,
    write_per_class,
    write_predictions,
)
from tinyexp.observability.evaluation_pictures import Tile, draw_confusion, draw_contact_sheet

NAMES = ["cat", 'a "b", c', "$x$"]
SCORED = [
    ScoredImage("cat/1.png", 0, 0, 0.9, 0.1),
    ScoredImage("cat/2.png", 0, 2, 0.6, 1.5),
    ScoredImage("cat/3.png", 0, 2, 0.7, float("nan")),
    ScoredImage("b/1,2.png", 1, 0, 0.5, 2.5),
]


def test_a_class_has_its_accuracy_and_what_it_is_most_often_taken_for(tmp_path):
    rows = per_class(SCORED, NAMES)
    assert [(row["images"], row["correct"], row["most_often_taken_for"], row["times"]) for row in rows] == [
        (3, 1, "$x$", 2),
        (1, 0, "cat", 1),
        (0, 0, "", 0),
    ]
    assert [row["accuracy"] for row in rows] == [pytest.approx(100 / 3), 0.0, None]
    with open(write_per_class(tmp_path, rows), newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == NAMES


def test_predictions_survive_commas_quotes_and_bytes_that_are_no_text(tmp_path):
    odd = ScoredImage("cat/\udcff.png", 0, 1, 0.5, 1.0)
    path = write_predictions(tmp_path, [*SCORED, odd], NAMES)
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [each.file for each in [*SCORED, odd]]
    assert rows[3]["target_name"] == 'a "b", c'
    assert [row["loss"] for row in rows] == ["0.1", "1.5", "", "2.5", "1"]


def test_the_worst_come_first_and_a_loss_that_is_not_finite_before_them():
    assert worst_first(SCORED) == [2, 3, 1, 0]
    assert confused_pairs(SCORED) == [(0, 2, 2), (1, 0, 1)]


@pytest.mark.parametrize("num_classes", [3, 21, 100])
def test_the_picture_of_confusions_is_drawn_for_any_number_of_classes_and_any_name(tmp_path, num_classes):
    names = [*NAMES, *(f"class {number} of a very long name \u6f22" for number in range(3, num_classes))]
    with Image.open(draw_confusion(SCORED, names, tmp_path / "confusion.png")) as picture:
        picture.load()
        assert 400 < picture.width < 1600


def test_the_contact_sheet_holds_each_image_and_cuts_captions_to_its_width(tmp_path):
    tiles = [Tile(Image.new("RGB", (8, 8), colour), ["x" * 200, "\udcff", "3"]) for colour in ("red", "lime", "blue")]
    with Image.open(draw_contact_sheet(tiles, tmp_path / "worst.png", title="Worst", columns=2)) as sheet:
        colours = {colour for count, colour in sheet.getcolors(1 << 16) or [] if count == 160 * 160}
        assert colours == {(255, 0, 0), (0, 255, 0), (0, 0, 255)}
        assert sheet.width == 2 * 172 + 12
