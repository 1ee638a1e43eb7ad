import io
import random
import resource
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from tinyexp.data.decoding import MAX_PIXELS, UnreadableImage, decode_rgb
from tinyexp.errors import DataError

PLAIN = [(220, 30, 30), (30, 200, 40), (40, 60, 210), (128, 128, 128)]
GREY = [(72, 72, 72), (182, 182, 182), (72, 72, 72), (182, 182, 182)]
COLOURS = {  # file: (mean colours of the quarters, tolerance), from the table of the cases
    "plain_rgb.JPEG": (PLAIN, 3),
    "cmyk_adobe.JPEG": ([(255, 25, 25), (25, 255, 25), (25, 25, 255), (127, 127, 127)], 12),
    "png_inside.JPEG": (PLAIN, 3),
    "gray_jpeg.JPEG": (GREY, 3),
    "gray_png_inside.JPEG": (GREY, 3),
}
UNREADABLE = {
    "truncated_half.JPEG": "Truncated File Read",
    "truncated_tail.JPEG": "image file is truncated",
    "header_only.JPEG": "starts with",
    "zero_bytes.JPEG": "the file is empty",
    "html_error_page.JPEG": r"starts with b'<",
}


def quarter_means(image: Image.Image) -> list[tuple[float, ...]]:
    pixels = np.asarray(image).astype(float)
    top, bottom = np.split(pixels, 2, axis=0)
    quarters = [*np.split(top, 2, axis=1), *np.split(bottom, 2, axis=1)]
    return [tuple(quarter.mean(axis=(0, 1))) for quarter in quarters]


@pytest.mark.parametrize("name", COLOURS)
def test_unusual_files_arrive_as_rgb_with_their_true_colours(case_images, name):
    want, tolerance = COLOURS[name]
    image = decode_rgb((case_images / name).read_bytes(), path=name)
    assert (image.mode, image.size) == ("RGB", (64, 48))
    np.testing.assert_allclose(quarter_means(image), want, atol=tolerance)


def test_a_format_outside_the_list_is_not_decoded(tmp_path):
    picture = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8)).save(picture, format="PPM")
    with pytest.raises(DataError, match=r"no JPEG, PNG, WEBP, BMP, GIF, TIFF image"):
        decode_rgb(picture.read_bytes(), path=str(picture))


def test_decoding_warns_about_no_file(tmp_path):
    palette = Image.new("RGB", (8, 8)).quantize(4)
    palette.save(tmp_path / "a.png", transparency=b"\x00\x80")  # Pillow warns when such a picture becomes RGB
    assert decode_rgb((tmp_path / "a.png").read_bytes(), path="a.png").mode == "RGB"


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "WEBP", "PNG", "JPEG"])
def test_every_format_of_image_sets_decodes_whatever_its_name(kind):
    image = decode_rgb(encoded(Image.new("RGB", (9, 7), (200, 100, 50)), kind), path="a.JPEG")
    assert (image.mode, image.size) == ("RGB", (9, 7))
    np.testing.assert_allclose(np.asarray(image), np.broadcast_to((200, 100, 50), (7, 9, 3)), atol=4)


def test_sixteen_bits_of_grey_become_eight_instead_of_white():
    grey = Image.fromarray((np.arange(256, dtype=np.uint16) * 257).reshape(16, 16))
    for kind in ("PNG", "TIFF"):
        image = decode_rgb(encoded(grey, kind), path="a.png")
        assert np.array_equal(np.asarray(image)[..., 0].ravel(), np.arange(256))


def test_numbers_without_a_range_are_refused():
    with pytest.raises(UnreadableImage, match=r"a\.tif: .*numbers without a range \(mode F\)"):
        decode_rgb(encoded(Image.new("F", (8, 8)), "TIFF"), path="a.tif")


def jpeg_of(width: int, height: int) -> bytes:
    """A small JPEG whose header claims another size."""
    data = encoded(Image.new("RGB", (8, 8)), "JPEG")
    size = data.index(b"\xff\xc0") + 5
    return data[:size] + struct.pack(">HH", height, width) + data[size + 4 :]


def png_of(width: int, height: int) -> bytes:
    data = encoded(Image.new("RGB", (8, 8)), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("claims", [(8_000, 8_000), (12_000, 12_000), (20_000, 20_000), (65_500, 65_500)])
@pytest.mark.parametrize("bomb", [jpeg_of, png_of])
def test_a_decompression_bomb_is_refused_by_its_header_and_costs_no_memory(bomb, claims):  # 64, 144, 400 and 4290 megapixels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImage, match=r"a\.JPEG: .*(dataloader_cfg\.max_pixels=62,500,000|decompression bomb)"):
        decode_rgb(bomb(*claims), path="a.JPEG")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_the_limit_is_a_key_and_lets_everything_up_to_it_pass():
    data = encoded(Image.new("L", (100, 100)), "PNG")
    assert decode_rgb(data, path="a.png", max_pixels=10_000).size == (100, 100)
    with pytest.raises(UnreadableImage, match=r"claims 100 x 100 = 10,000 pixels, more than dataloader_cfg\.max_pixels=9,999"):
        decode_rgb(data, path="a.png", max_pixels=9_999)
    assert MAX_PIXELS == 62_500_000


def test_mutated_files_decode_or_are_refused_and_nothing_else():
    random.seed(0)
    noise = Image.fromarray(np.random.RandomState(0).randint(0, 256, (48, 64, 3), np.uint8))
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        good = encoded(noise, kind)
        for _ in range(300):
            bad = bytearray(good[: random.choice([len(good), random.randrange(len(good))])])
            for _ in range(random.randrange(1, 8)):
                bad[random.randrange(len(bad))] = random.randrange(256)
            start = time.monotonic()
            try:
                assert decode_rgb(bytes(bad), path="a").mode == "RGB"
            except DataError as error:
                assert str(error).startswith("a: ")
            assert time.monotonic() - start < 10
