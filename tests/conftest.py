"""The toy set of the cases: 64 training and 11 validation images of tinted noise in four class folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TINTS = ((200, 60, 60), (60, 200, 60), (60, 60, 200), (200, 200, 60))


def write_toy_split(folder: Path, counts: tuple[int, ...], *, side: int = 72, seed: int = 0) -> None:
    random = np.random.RandomState(seed)
    for label, count in enumerate(counts):
        class_folder = folder / f"c{label}"
        class_folder.mkdir(parents=True)
        for index in range(count):
            noise = random.randint(-50, 50, (side, side, 3)) + np.array(TINTS[label])
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(class_folder / f"{index}.JPEG")


@pytest.fixture(scope="session")
def toy_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_split(root / "train", (16, 16, 16, 16))
    write_toy_split(root / "val", (3, 3, 3, 2), seed=1)
    return root


@pytest.fixture(scope="session")
def case_images() -> Path:
    return Path(__file__).parent / "data" / "images"
