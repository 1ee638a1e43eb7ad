"""From the bytes of one file to an RGB image, whatever kind of picture real image sets hold, or a message that says why not."""

import io
import warnings

import numpy
from PIL import Image, UnidentifiedImageError

from tinyexp.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # what image sets hold; every other decoder stays out of reach
MAX_PIXELS = 62_500_000  # 250 MB at four bytes each
PILLOW_LIMIT = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # above it Pillow itself refuses


class UnreadableImage(DataError):
    """A file of the data set that cannot be read or decoded. The message starts with its path."""


def decode_rgb(data: bytes, *, path: str, max_pixels: int = MAX_PIXELS, smallest_side: int | None = None) -> Image.Image:
    """The RGB image in the bytes of one file. The content decides the format, not the name; four-colour JPEGs included.

    What the header says about the size is believed before anything is decoded: 335 bytes can ask for gigabytes. With
    `smallest_side` a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where both sides keep that many pixels.

    Raises: UnreadableImage with `path` and the reason, for truncated files too: a missing part is never filled with grey.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns for each of ImageNet's damaged EXIF blocks and for palettes with transparency.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the stricter limit
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _require_size(image, max_pixels)
            image.decodermaxblock = max(len(data), image.decodermaxblock)  # all at once, not in pieces of 64 KiB
            if smallest_side is not None:
                image.draft(None, (smallest_side, smallest_side))  # other formats know no draft and stay as they are
            return _to_rgb(image)
    except UnidentifiedImageError as error:
        found = f"it starts with {data[:12]!r}" if data else "the file is empty"
        reason, cause = f"no {', '.join(FORMATS)} image: {found}", error
    except Exception as error:  # what a broken file raises depends on the decoder: OSError, SyntaxError, struct.error, ...
        reason, cause = str(error) or type(error).__name__, error
    raise UnreadableImage(f"{path}: the image cannot be decoded: {reason}; replace or remove the file") from cause


def _require_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(
            f"it claims {width} x {height} = {width * height:,} pixels, more than dataloader_cfg.max_pixels={max_pixels:,}"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    """As Pillow converts, save what it would clip in silence: 16-bit grey keeps its high bytes, other numbers are refused."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers without a range (mode {image.mode}); store it with 8 or 16 bits")
    if image.mode == "RGB":
        image.load()  # to convert it would copy what is RGB already
        return image
    return image.convert("RGB")
