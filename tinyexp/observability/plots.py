"""The curves of a run as one picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyexp.observability.log import replace_file


def draw_curves(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> Path:
    """Loss, top-1 and learning rate over the epochs of `log.txt` rows, as a PNG, whole or not at all; returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = (
        (
            "Loss",
            "cross-entropy",
            {"train_loss": "train (mixed targets)", "test_loss": "val", "ema_test_loss": "val, averaged weights"},
        ),
        ("Top-1 accuracy", "%", {"test_acc1": "val", "ema_test_acc1": "val, averaged weights"}),
        ("Learning rate", "", {"train_lr": "lr"}),
    )
    for axis, (name, unit, curves) in zip(axes, panels, strict=True):
        for key, label in curves.items():
            points = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else None)
        axis.set(title=name, xlabel="epoch", ylabel=unit)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110)
    replace_file(path, picture.getvalue())
    return path
