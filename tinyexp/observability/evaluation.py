"""What an evaluation found image by image: as files to sort and search, by class, and the images it was most wrong about."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREDICTIONS, PER_CLASS = "predictions.csv", "per_class.csv"


@dataclass(frozen=True)
class ScoredImage:
    """One image and what the model made of it."""

    file: str  # from the class folder on
    target: int
    predicted: int
    probability: float  # of the predicted class
    loss: float  # cross-entropy


def write_predictions(folder: Path, scored: Iterable[ScoredImage], names: Sequence[str]) -> Path:
    """A line an image, in the order of the data set; a number that is not finite is left empty."""
    columns = ["file", "target", "predicted", "probability", "loss", "target_name", "predicted_name"]
    rows = (
        [
            *(each.file, each.target, each.predicted, _number(each.probability), _number(each.loss)),
            *(names[each.target], names[each.predicted]),
        ]
        for each in scored
    )
    return _write(folder / PREDICTIONS, columns, rows)


def per_class(scored: Iterable[ScoredImage], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row a class: its number, name, images, correct ones, accuracy in percent, and what it is most often taken for."""
    taken_for: list[Counter[int]] = [Counter() for _ in names]
    for each in scored:
        taken_for[each.target][each.predicted] += 1
    rows = []
    for number, counts in enumerate(taken_for):
        images, correct = counts.total(), counts[number]
        wrong = min((other for other in counts if other != number), key=lambda other: (-counts[other], other), default=None)
        rows.append(
            {
                "class": number,
                "name": names[number],
                "images": images,
                "correct": correct,
                "accuracy": 100 * correct / images if images else None,
                "most_often_taken_for": "" if wrong is None else names[wrong],
                "times": 0 if wrong is None else counts[wrong],
            }
        )
    return rows


def write_per_class(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows of `per_class` as a file."""
    return _write(folder / PER_CLASS, list(rows[0]), ([_number(value) for value in row.values()] for row in rows))


def confused_pairs(scored: Iterable[ScoredImage]) -> list[tuple[int, int, int]]:
    """(target, predicted, images) of all wrong answers, the most frequent first."""
    counts = Counter((each.target, each.predicted) for each in scored if each.target != each.predicted)
    return sorted(((*pair, count) for pair, count in counts.items()), key=lambda row: (-row[2], row[0], row[1]))


def worst_first(scored: Sequence[ScoredImage]) -> list[int]:
    """Positions by falling loss; a loss that is not finite comes before all others."""
    losses = [each.loss if math.isfinite(each.loss) else math.inf for each in scored]
    return sorted(range(len(scored)), key=lambda position: (-losses[position], position))


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if math.isfinite(value) else ""


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
    return path
