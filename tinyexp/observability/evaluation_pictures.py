"""An evaluation as pictures: which classes are taken for which, and the images it was most wrong about."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from tinyexp.observability.evaluation import ScoredImage, confused_pairs

MOST_CLASSES = 40  # beyond them a matrix cannot be read, and the most confused pairs are shown
MOST_COUNTS = 20  # classes up to which each cell has its number
NUM_PAIRS = 20
TILE, GAP, LINE = 160, 12, 17  # pixels: an image of the contact sheet, the space around it, a line of its caption
LONGEST_NAME = 28  # characters of a class name on an axis


@dataclass(frozen=True)
class Tile:
    """An image of a contact sheet and the lines below it."""

    image: Image.Image
    caption: Sequence[str]


def draw_confusion(scored: Sequence[ScoredImage], names: Sequence[str], path: Path) -> Path:
    """Targets against predictions as a PNG, the most confused pairs where there are many classes; returns its path."""
    from matplotlib.figure import Figure

    matrix = len(names) <= MOST_CLASSES
    side = max(4.5, 2 + 0.3 * len(names))
    figure = Figure(figsize=(side + 0.6, side) if matrix else (8, 6), layout="constrained")
    axis = figure.subplots()
    if matrix:
        _draw_matrix(axis, scored, names)
    else:
        _draw_pairs(axis, scored, names)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a script that matplotlib's font lacks
        figure.savefig(path, dpi=110)
    return path


def draw_contact_sheet(tiles: Sequence[Tile], path: Path, *, title: str, columns: int = 6) -> Path:
    """The tiles in rows, as a PNG; returns its path."""
    import matplotlib

    fonts = Path(matplotlib.get_data_path(), "fonts/ttf")
    font = ImageFont.truetype(fonts / "DejaVuSans.ttf", 12)
    lines = max(len(tile.caption) for tile in tiles)
    height = TILE + lines * LINE + 2 * GAP
    rows = math.ceil(len(tiles) / columns)
    top = 44
    sheet = Image.new("RGB", (min(columns, len(tiles)) * (TILE + GAP) + GAP, top + rows * height), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 14), title, fill="black", font=ImageFont.truetype(fonts / "DejaVuSans-Bold.ttf", 15))
    for number, tile in enumerate(tiles):
        left, upper = GAP + number % columns * (TILE + GAP), top + number // columns * height
        sheet.paste(enlarged(tile.image, TILE), (left, upper))
        for line, text in enumerate(tile.caption):
            draw.text((left, upper + TILE + 4 + line * LINE), _fitting(text, font), fill="black", font=font)
    sheet.save(path)
    return path


def enlarged(image: Image.Image, side: int) -> Image.Image:
    """The image as a square of `side` pixels; the pixels of a small one stay visible."""
    small = max(image.size) < side
    return image.resize((side, side), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)


def _draw_matrix(axis: Any, scored: Sequence[ScoredImage], names: Sequence[str]) -> None:
    counts = [[0] * len(names) for _ in names]
    for each in scored:
        counts[each.target][each.predicted] += 1
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    picture = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.figure.colorbar(picture, ax=axis, label="share of the class", shrink=0.8)
    ticks = range(len(names))
    axis.set(title="Which class is taken for which", xlabel="predicted", ylabel="true", xticks=ticks, yticks=ticks)
    for labels, rotation in (
        (axis.set_xticklabels(map(_short, names)), 90 if max(map(len, names)) > 3 else 0),
        (axis.set_yticklabels(map(_short, names)), 0),
    ):
        for label in labels:
            label.set(parse_math=False, rotation=rotation)
    if len(names) <= MOST_COUNTS:
        for target, row in enumerate(counts):
            for predicted, count in enumerate(row):
                colour = "white" if shares[target][predicted] > 0.55 else "black"
                axis.text(predicted, target, count or "", ha="center", va="center", color=colour, fontsize=8)


def _draw_pairs(axis: Any, scored: Sequence[ScoredImage], names: Sequence[str]) -> None:
    pairs = confused_pairs(scored)[:NUM_PAIRS]
    bars = axis.barh(range(len(pairs)), [count for _, _, count in pairs], color="#2a78d6")
    axis.bar_label(bars, padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.set(title="The classes that are confused most often", xlabel="images", yticks=range(len(pairs)))
    for label in axis.set_yticklabels([f"{_short(names[true])} → {_short(names[other])}" for true, other, _ in pairs]):
        label.set_parse_math(False)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)
    if not pairs:
        axis.text(0.5, 0.5, "every image was recognised", transform=axis.transAxes, ha="center")


def _short(name: str) -> str:
    name = _printable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _fitting(text: str, font: ImageFont.FreeTypeFont) -> str:
    """The text on one line, cut off where it would reach into the next tile."""
    text = _printable(text)
    if font.getlength(text) <= TILE:
        return text
    while text and font.getlength(text + "…") > TILE:
        text = text[:-1]
    return text + "…"


def _printable(text: str) -> str:
    """The text on one line, with ? for bytes of a file name that are no text."""
    return " ".join(text.encode("utf-8", "replace").decode().split())
