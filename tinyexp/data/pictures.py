"""Images of an evaluation loader as a person knows them: which file, and what the model looks at."""

import logging
from collections.abc import Container, Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from tinyexp.data.bad_images import Skipping
from tinyexp.data.batches import ImageLoader
from tinyexp.data.images import Images
from tinyexp.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from tinyexp.errors import DataError

log = logging.getLogger("tinyexp")


def picture(image: Tensor) -> Image.Image:
    """The RGB picture behind a normalised image (3, height, width)."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return to_pil_image((image.float() * std + mean).clamp(0, 1))


def picture_again(loader: ImageLoader, index: int) -> Image.Image | None:
    """The picture of an image that was read before; None, and a warning, where it cannot be read any more."""
    try:
        sample = loader.dataset[index]  # None where the loader skips
    except DataError as error:
        log.warning("%s", error)
        return None
    return picture(sample[0]) if sample is not None else None


def image_file(loader: ImageLoader, index: int) -> str:
    """The file of an image, below the folder of its split; its number where the set has no files."""
    images = loader.dataset.images if isinstance(loader.dataset, Skipping) else loader.dataset
    if not isinstance(images, Images):
        return str(index)
    return images.files.name(index).removeprefix(f"{images.files.root}/")


def class_numbers(loader: ImageLoader) -> Sequence[int]:
    """The class of each image, by its number in the set; a class of its own for each where only the image itself tells."""
    images = loader.dataset.images if isinstance(loader.dataset, Skipping) else loader.dataset
    if isinstance(images, Images):
        return [int(target) for target in images.files.targets]
    return range(len(loader.dataset))  # pyright: ignore[reportArgumentType]


def scored_indices(loader: ImageLoader, unreadable: Container[int]) -> list[int]:
    """The images that this replica's evaluation has scored, in order, where no rank could read the unreadable ones."""
    return [index for index in loader.order if index not in unreadable]
