"""The part of a run's page that tells of `mode=eval`."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyexp.observability.evaluation import PER_CLASS
from tinyexp.report.page import Picture, Section, Table, png_url
from tinyexp.report.run_files import RunFolder
from tinyexp.report.sections import cell

MOST_CLASSES = 40  # that a table shows; of more, the worst


def evaluation(run: RunFolder) -> Section | None:
    """What `mode=eval` found, where it has run in this folder."""
    scores = run.scores
    if not scores:
        return None
    said = [
        f"{name} {scores[key]:.{digits}f}{unit}"
        for name, key, digits, unit in (
            ("top-1", "test_acc1", 2, " %"),
            ("top-5", "test_acc5", 2, " %"),
            ("loss", "test_loss", 4, ""),
            ("top-1 of the averaged weights", "ema_test_acc1", 2, " %"),
        )
        if scores.get(key) is not None
    ]
    text = [f"mode=eval of {scores.get('weights') or 'the weights'}: {', '.join(said)}."]
    pictures = [
        Picture(png_url(path), described, caption, wide=wide)
        for name, described, caption, wide in (
            ("confusion.png", "Which class is taken for which", "Images by true and by predicted class.", False),
            ("worst.png", "The images with the highest loss", "Below each: its class, what it was taken for, its loss.", True),
        )
        if (path := run.path / name).is_file()
    ]
    return Section("Evaluation", text=text, pictures=pictures, tables=[*_worst(scores), *_classes(run.path / PER_CLASS)])


def _worst(scores: Mapping[str, Any]) -> list[Table]:
    rows = [
        [each["file"], each["target_name"], each["predicted_name"], cell(each["probability"]), cell(each["loss"])]
        for each in scores.get("worst", [])
    ]
    columns = ["file", "class", "taken for", "probability", "loss"]
    return [Table("The images with the highest loss", columns, rows, numbers=(3, 4), folded=True)] if rows else []


def _classes(path: Path) -> list[Table]:
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["images"])]
    rows.sort(key=lambda row: float(row["accuracy"]))
    caption = (
        "Accuracy by class, the worst first" if len(rows) <= MOST_CLASSES else f"The {MOST_CLASSES} classes of lowest accuracy"
    )
    cells = [
        [row["name"], row["images"], f"{float(row['accuracy']):.1f} %", row["most_often_taken_for"], row["times"]]
        for row in rows[:MOST_CLASSES]
    ]
    columns = ["class", "images", "accuracy", "most often taken for", "times"]
    return [Table(caption, columns, cells, numbers=(1, 2, 4), folded=len(cells) > 10)]
