"""`dataloader_cfg.fast_decode`: large JPEGs of the training at a part of their size, everything else bit for bit as it was."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data_room.configs import toy_cfg
from tinyexp.data.decoding import UnreadableImage, decode_rgb
from tinyexp.data.images import Images
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.seeded import SeededImages
from tinyexp.process import Axis


def encoded(size: tuple[int, int], kind: str = "JPEG", mode: str = "RGB") -> bytes:
    gradient = Image.linear_gradient("L").resize(size)
    content = io.BytesIO()
    Image.merge("RGB", [gradient, gradient.transpose(Image.Transpose.FLIP_TOP_BOTTOM), gradient]).convert(mode).save(
        content, kind
    )
    return content.getvalue()


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((160, 120), (160, 120)),  # a half would have 60 rows
        ((159, 400), (159, 400)),
        ((160, 161), (80, 81)),
        ((400, 320), (100, 80)),
        ((5000, 700), (625, 88)),
    ],
)
def test_a_jpeg_keeps_the_smallest_side_at_the_smallest_eighth_quarter_or_half(size, want):
    image = decode_rgb(encoded(size), path="a.jpg", smallest_side=80)
    assert (image.size, image.mode) == (want, "RGB")
    box = Image.open(io.BytesIO(encoded(size))).convert("RGB").resize(want, Image.Resampling.BOX)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(box, dtype=int)).mean() < 2


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_four_colour_jpegs_are_reduced_to_the_same_colours(mode):
    data = encoded((320, 320), mode=mode)
    image, whole = decode_rgb(data, path="a.jpg", smallest_side=80), decode_rgb(data, path="a.jpg")
    assert (image.size, image.mode) == ((80, 80), "RGB")
    small = whole.resize((80, 80), Image.Resampling.BOX)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(small, dtype=int)).mean() < 2


def test_other_formats_and_smaller_jpegs_are_the_same_bit_for_bit():
    for data in (encoded((640, 640), "PNG"), encoded((150, 150))):
        assert decode_rgb(data, path="a", smallest_side=80) == decode_rgb(data, path="a")


def test_truncated_jpegs_and_those_with_too_many_pixels_stay_unreadable():
    data = encoded((320, 320))
    with pytest.raises(UnreadableImage, match=r"a\.jpg: the image cannot be decoded"):
        decode_rgb(data[: len(data) // 2], path="a.jpg", smallest_side=80)
    with pytest.raises(UnreadableImage, match="320 x 320 = 102,400 pixels"):
        decode_rgb(data, path="a.jpg", max_pixels=6400, smallest_side=80)


def batches(cfg: DataLoaderCfg) -> tuple[torch.Tensor, torch.Tensor]:
    train = cfg.build_train(Axis(), num_classes=1, seed=0, device_type="cpu")
    val = cfg.build_val(Axis(), num_classes=1, device_type="cpu")
    return next(iter(train))[0], next(iter(val))[0]


@pytest.mark.parametrize(("side", "same"), [(159, True), (160, False)])
def test_it_changes_training_images_from_four_input_sizes_on_and_no_evaluation(tmp_path, side, same):
    for split in ("train", "val"):
        (tmp_path / split / "c0").mkdir(parents=True)
        (tmp_path / split / "c0" / "0.jpg").write_bytes(encoded((side, side)))
    cfgs = [toy_cfg(tmp_path, fast_decode=fast, train_batch_size_per_device=1, reprob=0.0) for fast in (False, True)]
    (train, val), (fast_train, fast_val) = (batches(cfg) for cfg in cfgs)
    assert torch.equal(train, fast_train) == same
    assert torch.equal(val, fast_val)
    loader = cfgs[1].build_train(Axis(), num_classes=1, seed=0, device_type="cpu")
    assert isinstance(loader.dataset, SeededImages)
    assert isinstance(loader.dataset.images, Images)
    assert loader.dataset.images.smallest_side == 80


def test_it_is_refused_where_images_are_not_resized(toy_set):
    [problem] = toy_cfg(toy_set, input_size=32, fast_decode=True).problems(mixup_active=False, num_classes=4)
    assert problem == (
        "dataloader_cfg.fast_decode=true cannot work at dataloader_cfg.input_size=32, where images are not resized; "
        "set dataloader_cfg.fast_decode=false"
    )
