"""What an evaluation answered for each image, gathered from all replicas, and the files that it becomes."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader
from tinyexp.data.class_names import class_names
from tinyexp.data.pictures import image_file, picture_again, scored_indices
from tinyexp.errors import MachineError
from tinyexp.observability.evaluation import ScoredImage, per_class, worst_first, write_per_class, write_predictions
from tinyexp.observability.evaluation_pictures import Tile, draw_confusion, draw_contact_sheet
from tinyexp.observability.log import write_summary

NUM_WORST = 24  # images that `worst.png` shows
FILES = ("eval.json", "predictions.csv", "per_class.csv", "confusion.png", "worst.png")  # of an evaluation


class Predictions:
    """The answers of one replica, batch by batch."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._unread: list[int] = []  # images that this rank could not read

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Note a batch: logits (images, classes), targets (images,)."""
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices[:, 0]  # as `evaluate`, which counts these as right
        probability = logits.double().softmax(1).gather(1, best[:, None])[:, 0]
        loss = F.cross_entropy(logits.double(), targets, reduction="none")
        self._rows.append(torch.stack([targets.double(), best.double(), probability, loss], dim=1).cpu())

    def end(self, loader: ImageLoader) -> None:
        """Note what has no row. Call it when the batches end: a later pass may miss other files, as other replicas may."""
        self._unread = loader.bad_images.flags.nonzero().flatten().tolist() if loader.bad_images else []

    def gather(self, accelerator: Accelerator, loader: ImageLoader) -> dict[int, ScoredImage]:
        """By number in the data set, in that order: every image that some replica has scored, once. Every rank must call it."""
        replica = accelerator.replica.rank  # whose ranks may share its reading
        unread = accelerator.exchange((replica, self._unread))
        unreadable = {index for of, indices in unread if of == replica for index in indices}
        own = zip(scored_indices(loader, unreadable), (row for rows in self._rows for row in rows.tolist()), strict=True)
        found: dict[int, list[float]] = {}
        for rows in accelerator.exchange(list(own)):
            for index, row in rows:
                found.setdefault(index, row)  # the ranks of a replica have the same, and dist_eval repeats some images
        return {
            index: ScoredImage(image_file(loader, index), int(target), int(predicted), probability, loss)
            for index, (target, predicted, probability, loss) in sorted(found.items())
        }


def write_evaluation(
    folder: Path, told: Mapping[str, Any], scored: Mapping[int, ScoredImage], loader: ImageLoader, num_classes: int
) -> None:
    """Write `told` as eval.json, then the files that tell of each image, which eval.json names. One rank calls it.

    Raises: MachineError where the folder does not take them.
    """
    try:
        _write_files(folder, told, scored, loader, num_classes)
    except OSError as error:
        raise MachineError(
            f"the results of the evaluation cannot be written to {folder}: {error}; the score is printed above; "
            "make room there, or set another output_root, and evaluate again"
        ) from None


def _write_files(
    folder: Path, told: Mapping[str, Any], scored: Mapping[int, ScoredImage], loader: ImageLoader, num_classes: int
) -> None:
    write_summary(folder, told, name="eval.json")  # before what takes longer
    names, indices, images = class_names(loader, num_classes), list(scored), list(scored.values())
    worst = [(indices[position], images[position]) for position in worst_first(images)[:NUM_WORST]]
    tiles = [_tile(loader, index, _caption(each, names)) for index, each in worst]
    files = {
        "predictions": str(write_predictions(folder, images, names)),
        "per_class": str(write_per_class(folder, per_class(images, names))),
        "confusion": str(draw_confusion(images, names, folder / "confusion.png")),
        "worst_images": str(draw_contact_sheet(tiles, folder / "worst.png", title="The images with the highest loss")),
    }
    write_summary(folder, {**told, **files, "worst": [_plain(each, names) for _, each in worst]}, name="eval.json")
    print("\n  ".join(["image by image:", *files.values()]), flush=True)
    page = f"python -m tinyexp report {shlex.quote(str(folder))}"
    print(f"the score is in {folder / 'eval.json'}; {page} makes a page of it", flush=True)


def _tile(loader: ImageLoader, index: int, caption: list[str]) -> Tile:
    """A grey one that says so where the image, which was scored, cannot be read again."""
    shown = picture_again(loader, index)
    if shown is None:
        return Tile(Image.new("RGB", (loader.input_size, loader.input_size), "grey"), [*caption, "cannot be read again"])
    return Tile(shown, caption)


def _caption(each: ScoredImage, names: Sequence[str]) -> list[str]:
    answer = "recognised" if each.predicted == each.target else f"taken for {names[each.predicted]}"
    return [names[each.target], f"{answer}, {each.probability:.0%}", f"loss {each.loss:.2f}"]


def _plain(each: ScoredImage, names: Sequence[str]) -> dict[str, Any]:
    """As JSON has it: names beside the numbers, null for what is not finite."""
    values = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in asdict(each).items()
    }
    return values | {"target_name": names[each.target], "predicted_name": names[each.predicted]}
