import numpy as np
import torch
from PIL import Image

from tinyexp.data.fake import FakeImages


def images(length: int = 8) -> FakeImages:
    return FakeImages(length, input_size=16, num_classes=10, transform=np.asarray)


def test_image_and_class_depend_on_the_index_alone():
    torch.manual_seed(1)
    first, first_target = images()[3]
    torch.manual_seed(2)
    again, again_target = images(length=100)[3]
    assert np.array_equal(first, again)
    assert first_target == again_target
    assert not np.array_equal(first, images()[4][0])


def test_images_are_rgb_noise_of_the_input_size_with_classes_in_range():
    fake = FakeImages(64, input_size=16, num_classes=3, transform=lambda image: image)
    image, _ = fake[0]
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size) == ("RGB", (16, 16))
    assert {target for _, target in (fake[index] for index in range(64))} == {0, 1, 2}


def test_reading_leaves_the_generator_of_the_process_untouched():
    before = torch.get_rng_state()
    images()[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_iteration_ends_after_the_last_image():
    assert len(list(images(length=5))) == 5  # pyright: ignore[reportArgumentType]  iterates by index until IndexError
