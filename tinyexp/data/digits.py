"""Handwritten digits as an image folder: a real data set that ships with scikit-learn, for runs without ImageNet.

python -m tinyexp.data.digits [root]
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tinyexp.data.command import one_message
from tinyexp.errors import DataError
from tinyexp.limits import home_path
from tinyexp.streams import end_of_output

DEFAULT_ROOT = Path("data/digits")
NUM_IMAGES = 1797  # scikit-learn's load_digits
TRAIN_SHARE = 0.8
SIDE = 32  # pixels; the originals are 8 x 8


def write_digits(root: Path) -> Path:
    """`root`, holding {train,val}/<digit>/<index>.png: 1,797 RGB images of 32 x 32 pixels, about 80 % of each digit in train.

    Written once: a complete folder is left alone. The split is fixed, and the index is scikit-learn's. The folder gets its
    name only when it is complete, whatever interrupts the writing and however many processes write at once.

    Raises: DataError if something else lies at `root`, or it cannot be written.
    """
    root = root.expanduser().absolute()
    if is_complete(root):
        return root
    try:
        _write_whole(root)
    except OSError as error:
        raise DataError(f"the digits cannot be written to {root}: {error.strerror}; choose another folder") from error
    return root


def _write_whole(root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".digits-") as temporary:
        draft = Path(temporary) / "digits"
        _write_images(draft)
        try:
            os.rename(draft, root)  # replaces an empty folder, never one with files
        except OSError as error:
            if not is_complete(root):
                reason = f"{root} exists and is not the folder of {NUM_IMAGES:,} digits ({error.strerror})"
                raise DataError(f"{reason}; remove it, or choose another") from error


def is_complete(root: Path) -> bool:
    """Whether `root` holds every digit."""
    return sum(1 for _ in root.glob("*/*/*.png")) == NUM_IMAGES


def _write_images(root: Path) -> None:
    from sklearn.datasets import load_digits  # takes seconds to import

    pixels, digit_of = load_digits(return_X_y=True)
    for digit in range(10):
        indices = np.flatnonzero(digit_of == digit)
        # The legacy generator: numpy guarantees that its stream never changes.
        shuffled = np.random.RandomState(digit).permutation(indices)
        num_train = round(TRAIN_SHARE * len(indices))
        for split, chosen in (("train", shuffled[:num_train]), ("val", shuffled[num_train:])):
            folder = root / split / str(digit)
            folder.mkdir(parents=True)
            for index in chosen:
                _to_picture(pixels[index].reshape(8, 8)).save(folder / f"{index}.png")


def _to_picture(strokes: np.ndarray) -> Image.Image:
    """RGB picture of one (8, 8) array of ink from 0 to 16, white on black."""
    grey = Image.fromarray((strokes * (255 / 16)).round().astype(np.uint8))
    return grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tinyexp.data.digits", description="Write the handwritten digits.")
    parser.add_argument("root", nargs="?", type=home_path, default=DEFAULT_ROOT, help=f"folder to write (default {DEFAULT_ROOT})")
    root = parser.parse_args().root
    with one_message(interrupted="no set was written"):
        root = write_digits(root)
    print(f"{NUM_IMAGES:,} digits in {root}; use dataloader_cfg.data_root={root}")


if __name__ == "__main__":
    with end_of_output():
        main()
