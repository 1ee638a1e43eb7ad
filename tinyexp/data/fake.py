"""A synthetic set of noise images: no disk, the same on every machine."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision.transforms.functional import to_pil_image


class FakeImages(Dataset):
    """`length` square RGB noise images with random classes. Image and class depend on the index alone.

    torchvision's FakeData is not used: it reseeds the generators of the process, those of the GPU included, for every
    image, and so would change drop-path and dropout of a run without loader workers.
    """

    def __init__(self, length: int, input_size: int, num_classes: int, transform: Callable[..., Any]) -> None:
        self.length = length
        self.input_size = input_size
        self.num_classes = num_classes
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside the {self.length} fake images")
        generator = torch.Generator().manual_seed(index)
        shape = (3, self.input_size, self.input_size)
        pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        target = int(torch.randint(self.num_classes, (), generator=generator))
        return self.transform(to_pil_image(pixels)), target
