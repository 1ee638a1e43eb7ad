"""The steps of a run in bounded memory: all of a short one, means of neighbouring steps of a long one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinyexp.report.charts import MOST_POINTS

MOST_MEANS = MOST_POINTS  # rows that are kept, so that a chart takes no mean of means
SECONDS = "step_s"
OF_A_SECOND = ("images_per_s", "link_share")  # what is told for each second, and so has its mean over the seconds of the steps

Sums = dict[str, tuple[float, float]]  # of each key: its values times their weights, and these weights


def step_means(records: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of these entries, MOST_MEANS at most: each the mean of as many neighbouring records, standing at its last step.

    A value that is missing or no number counts in no mean; where a row has none, it is None.
    """
    rows: list[Sums] = []
    group: list[Sums] = []
    each = 1  # records of a row
    for record in records:
        group.append({key: _weighted(record, key) for key in keys})
        if len(group) < each:
            continue
        rows.append(_sum(group))
        group = []
        if len(rows) == MOST_MEANS:
            rows = [_sum(pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
            each *= 2
    if group:
        rows.append(_sum(group))
    return [{key: total / weight if weight else None for key, (total, weight) in row.items()} for row in rows]


def _weighted(record: Mapping[str, Any], key: str) -> tuple[float, float]:
    """A value times its weight, and the weight; nothing of both where one of them is no number."""
    value, weight = record.get(key), record.get(SECONDS) if key in OF_A_SECOND else 1.0
    if not isinstance(value, int | float) or not isinstance(weight, int | float):
        return 0.0, 0.0
    return value * weight, weight


def _sum(group: Sequence[Sums]) -> Sums:
    found = {key: (sum(each[key][0] for each in group), sum(each[key][1] for each in group)) for key in group[0]}
    if "step" in found:
        found["step"] = next((each["step"] for each in reversed(group) if each["step"][1]), (0.0, 0.0))
    return found
