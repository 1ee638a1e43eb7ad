"""What a run's model answers for a few validation images, and where it looks: by one process, after the run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from tinyexp.data.class_names import class_names
from tinyexp.data.decoding import UnreadableImage
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.pictures import class_numbers, image_file, picture
from tinyexp.errors import CheckpointError, DataError
from tinyexp.models.vit.attention_maps import class_attention
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.models.vit.convert import convert_fused_qkv_to_split
from tinyexp.observability.evaluation_pictures import enlarged
from tinyexp.process import Axis
from tinyexp.report.page import Picture, Sample, picture_url
from tinyexp.training.weights import load_pretrained

SIDE = 192  # pixels of a picture on the page
NUM_ANSWERS = 3


def samples(source: str, config: Mapping[str, Any], count: int) -> list[Sample]:
    """`count` images of the validation set, spread over its classes, with the best answers and two maps of attention.

    `source` is a checkpoint in the official layout, `config` the configuration of the run; the same call gives the same
    images. On the CPU. Raises: TinyExpError with the reason where the weights or the images cannot be had.
    """
    if not count:
        return []
    model_cfg, data_cfg = _configured(config)
    model = model_cfg.build()
    load_pretrained(model, source, convert_fused_qkv_to_split)
    loader = data_cfg.build_val(Axis(), num_classes=model.num_classes, device_type="cpu")
    taken = list(_readable(loader.dataset, spread(class_numbers(loader)), count))
    if not taken:
        raise DataError(f"none of the {len(loader.dataset)} validation images can be read")  # pyright: ignore[reportArgumentType]
    images = torch.stack([image for _, image, _ in taken])
    try:
        attention = class_attention(model, images)
    except RuntimeError as error:  # as for images of another size than the model's
        raise CheckpointError(f"the model does not take the images of this configuration: {error}") from None
    names = class_names(loader, model.num_classes)
    probabilities = attention.logits.softmax(1)
    return [
        Sample(
            file=image_file(loader, index),
            true_class=names[target],
            answers=_best(probabilities[row], names),
            pictures=_pictures(image, names[target], attention.last_block[row], attention.rollout[row]),
        )
        for row, (index, image, target) in enumerate(taken)
    ]


def _configured(config: Mapping[str, Any]) -> tuple[ModuleCfg, DataLoaderCfg]:
    """Raises: CheckpointError for a configuration that another version of this project wrote."""
    try:
        return (
            ModuleCfg(**config["module_cfg"]),
            DataLoaderCfg(**{**config["dataloader_cfg"], "num_workers": 0, "on_bad_image": "stop"}),
        )
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"the configuration is that of another version: {error}") from None


def spread(targets: Sequence[int]) -> list[int]:
    """All positions in an order whose beginnings spread over the classes: evenly apart, and first one image of each."""
    by_class: dict[int, list[int]] = {}
    for position, target in enumerate(targets):
        by_class.setdefault(target, []).append(position)
    classes = [by_class[target] for target in _apart(sorted(by_class))]
    return [own[turn] for turn in range(max(map(len, classes), default=0)) for own in classes if turn < len(own)]


def _apart(values: Sequence[int]) -> list[int]:
    """The values so that those at the beginning are far from each other: the first of each half, of each quarter, ..."""
    width = max(1, (len(values) - 1).bit_length())
    order = sorted(range(2**width), key=lambda number: int(f"{number:0{width}b}"[::-1], 2))
    return [values[number] for number in order if number < len(values)]


def _readable(dataset: Any, order: Sequence[int], count: int) -> Iterator[tuple[int, Tensor, int]]:
    """(index, image, class) of the first `count` images that can be read."""
    found = 0
    for index in order:
        if found == count:
            return
        try:
            image, target = dataset[index]
        except UnreadableImage:
            continue  # the run has said so, or has stopped at it
        found += 1
        yield index, image, int(target)


def _best(probabilities: Tensor, names: list[str]) -> list[tuple[str, float]]:
    values, classes = probabilities.topk(min(NUM_ANSWERS, len(probabilities)))
    return list(zip([names[number] for number in classes.tolist()], values.tolist(), strict=True))


def _pictures(image: Tensor, name: str, last_block: Tensor, rollout: Tensor) -> list[Picture]:
    plain = enlarged(picture(image), SIDE)
    return [
        Picture(picture_url(plain), f"An image of class {name}", "image"),
        *(
            Picture(picture_url(_overlaid(plain, weights)), f"The same image: {_said(weights)}", caption)
            for caption, weights in (("last block", last_block), ("rollout", rollout))
        ),
    ]


def _overlaid(plain: Image.Image, weights: Tensor) -> Image.Image:
    """The image in grey under the colours of the attention, whose largest weight is the brightest."""
    import matplotlib

    low, high = weights.min(), weights.max()
    scaled = ((weights - low) / (high - low).clamp(min=1e-12) * 255).to(torch.uint8).numpy()
    smooth = Image.fromarray(scaled).resize(plain.size, Image.Resampling.BICUBIC)
    colours = matplotlib.colormaps["inferno"](numpy.asarray(smooth), bytes=True)[:, :, :3]
    return Image.blend(plain.convert("L").convert("RGB"), Image.fromarray(colours), 0.6)


def _said(weights: Tensor) -> str:
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    vertical = ("top", "middle", "bottom")[3 * row // weights.shape[0]]
    horizontal = ("left", "centre", "right")[3 * column // weights.shape[1]]
    return f"the class token attends most to the {vertical} {horizontal}"
