"""Curves as geometry: what a page needs to draw them as SVG, and to say the value under the pointer."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 360, 216  # of the drawing, in its own units: one is about a pixel on the page
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34  # margins for the numbers beside it
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}
MOST_POINTS = 300  # of a curve; longer ones are averaged over as many neighbouring steps as it takes
FEW_POINTS = 40  # up to which each point is marked

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Curve:
    """One line of a chart. A value that is not known is a gap."""

    label: str
    points: Sequence[Point]
    colour: int  # 1, 2 or 3: the same meaning has the same colour on the whole page


@dataclass(frozen=True)
class Line:
    """A curve, drawn."""

    label: str
    colour: int
    path: str  # of an SVG path
    dots: list[tuple[float, float]]  # where the points are to be marked


@dataclass(frozen=True)
class Chart:
    """A drawing of several curves over one axis."""

    title: str
    unit: str
    axis: str  # what runs along the bottom
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    described: str  # in words, for who cannot see it
    values: str  # JSON for the pointer: positions, and what to say at each


def chart(title: str, curves: Iterable[Curve], *, unit: str = "", axis: str = "epoch", from_zero: bool = False) -> Chart | None:
    """The curves as one drawing; None where none of them has a value. `from_zero` begins the upright axis at 0."""
    shown = [Curve(each.label, thinned(each.points), each.colour) for each in curves]
    shown = [each for each in shown if any(y is not None for _, y in each.points)]
    if not shown:
        return None
    xs = [x for each in shown for x, _ in each.points]
    ys = [y for each in shown for _, y in each.points if y is not None]
    x_ticks = _ticks(min(xs), max(xs), whole=True)
    y_ticks = _ticks(0.0 if from_zero else min(ys), max(ys))
    (x_low, x_high), (y_low, y_high) = _ends(min(xs), max(xs)), _ends(min(y_ticks[0], *ys), max(y_ticks[-1], *ys))

    def at(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return round(right, 2), round(HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM), 2)

    lines = []
    for each in shown:
        placed = [None if y is None else at(x, y) for x, y in each.points]
        lines.append(Line(each.label, each.colour, _path(placed), _dots(placed)))
    return Chart(
        title=title,
        unit=unit,
        axis=axis,
        lines=lines,
        x_ticks=[(at(tick, y_low)[0], _number(tick)) for tick in x_ticks],
        y_ticks=[(at(x_low, tick)[1], _number(tick)) for tick in y_ticks],
        described=_described(title, shown, unit, axis),
        values=_values(shown, unit, axis, at),
    )


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS points: as they are, or means of as many neighbours each, standing at the last of them."""
    each = math.ceil(len(points) / MOST_POINTS)
    if each <= 1:
        return list(points)
    found: list[Point] = []
    for first in range(0, len(points), each):
        part = points[first : first + each]
        known = [y for _, y in part if y is not None]
        found.append((part[-1][0], sum(known) / len(known) if known else None))
    return found


def points(rows: Iterable[Mapping[str, Any]], x: str, y: str) -> list[Point]:
    """Two entries of each row; a `y` that is missing or no finite number is a gap."""
    return [(row[x], row[y] if _is_number(row.get(y)) else None) for row in rows if _is_number(row.get(x))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ends(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    low, high = _ends(low, high)
    found = MaxNLocator(nbins=5, integer=whole, min_n_ticks=2).tick_values(low, high)
    return [float(tick) for tick in found if low <= tick <= high] or [low, high]


def _path(placed: Iterable[tuple[float, float] | None]) -> str:
    words, joined = [], False
    for point in placed:
        if point is not None:
            words.append(f"{'L' if joined else 'M'}{point[0]:g} {point[1]:g}")
        joined = point is not None
    return "".join(words)


def _dots(placed: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
    """All points of a short curve; of a long one those that have no neighbour, which no line would show."""
    if len(placed) <= FEW_POINTS:
        return [point for point in placed if point is not None]
    around = [None, *placed, None]
    return [
        here for before, here, after in zip(around, around[1:], around[2:], strict=False) if here and not before and not after
    ]


def _values(curves: Sequence[Curve], unit: str, axis: str, at: Any) -> str:
    xs = sorted({x for each in curves for x, _ in each.points})
    known = [dict(each.points) for each in curves]
    said = [
        [
            f"{axis} {_number(x)}",
            *(f"{each.label}: {_said(values.get(x), unit)}" for each, values in zip(curves, known, strict=True)),
        ]
        for x in xs
    ]
    return json.dumps({"x": [at(x, 0.0)[0] for x in xs], "said": said})


def _described(title: str, curves: Sequence[Curve], unit: str, axis: str) -> str:
    parts = []
    for each in curves:
        known = [(x, y) for x, y in each.points if y is not None]
        (first, begin), (last, end) = known[0], known[-1]
        parts.append(
            f"{each.label} from {_said(begin, unit)} at {axis} {_number(first)} to {_said(end, unit)} at {_number(last)}"
        )
    return f"{title}: {'; '.join(parts)}."


def _said(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    if value and abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
