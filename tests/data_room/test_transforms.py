import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.functional import to_tensor

from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.transforms import auto_augment_problem, build_eval_transform, build_train_transform, mend_posterize
from tinyexp.errors import DataError


def noise_image(width: int, height: int, *, seed: int = 0) -> Image.Image:
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def official_augmentation(input_size: int) -> transforms.Compose:
    transform = create_transform(
        input_size=input_size,
        is_training=True,
        color_jitter=0.3,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
    )
    assert isinstance(transform, transforms.Compose)
    return transform


def seed_generators(seed: int) -> None:
    """As seed_everything, without torch.manual_seed: before CUDA starts that keeps a stack trace of each call."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def augmented(transform: transforms.Compose, picture: Image.Image, *, seed: int) -> tuple[Tensor, tuple[float, float, float]]:
    """The augmented image and where it leaves the generators."""
    seed_generators(seed)
    return apply(transform, picture), generator_probe()


def apply(transform: transforms.Compose, picture: Image.Image) -> Tensor:
    tensor = transform(picture)
    assert isinstance(tensor, Tensor)
    return tensor


def generator_probe() -> tuple[float, float, float]:
    return random.random(), np.random.random_sample(), torch.rand(()).item()


def test_five_thousand_images_pass_the_recipe_and_equal_plain_timm_wherever_that_does_not_raise():
    ours, plain = build_train_transform(DataLoaderCfg(input_size=40)), official_augmentation(40)
    pictures = [noise_image(44, 40, seed=seed) for seed in range(16)]
    zero_bits = 0
    for seed in range(5000):
        picture = pictures[seed % len(pictures)]
        image, drawn = augmented(ours, picture, seed=seed)
        try:
            plain_image, plain_drawn = augmented(plain, picture, seed=seed)
        except ValueError as error:
            assert "bits must be" in str(error)
            zero_bits += 1
            continue
        assert torch.equal(image, plain_image), seed
        assert drawn == plain_drawn, seed
    assert zero_bits > 0  # or the mended case was never met


def test_posterize_with_zero_bits_gives_a_black_image_and_leaves_timm_as_it_is():
    cfg = DataLoaderCfg(auto_augment="rand-m10-p1.0-inc1", reprob=0.0)
    [ours] = [step for step in build_train_transform(cfg).transforms if hasattr(step, "ops")]
    [posterize] = [op for op in ours.ops if op.name == "PosterizeIncreasing"]
    assert posterize(noise_image(8, 8)).getextrema() == ((0, 0), (0, 0), (0, 0))
    [theirs] = [step for step in official_augmentation(40).transforms if hasattr(step, "ops")]
    [untouched] = [op for op in theirs.ops if op.name == "PosterizeIncreasing"]
    untouched.prob, untouched.magnitude, untouched.magnitude_std = 1.0, 10, 0
    with pytest.raises(ValueError, match="bits must be"):
        untouched(noise_image(8, 8))


@pytest.mark.parametrize("policy", ["v0", "original", "augmix-m10", "rand-m10-p1.0-mmax20"])
def test_other_policies_are_mended_too(policy):
    transform = build_train_transform(DataLoaderCfg(input_size=40, auto_augment=policy, train_interpolation="random"))
    seed_generators(0)
    for seed in range(50):
        assert apply(transform, noise_image(48, 48, seed=seed)).shape == (3, 40, 40)


def test_a_transform_without_policy_needs_no_mending():
    transform = build_train_transform(DataLoaderCfg(auto_augment=""))
    assert any(isinstance(step, transforms.ColorJitter) for step in transform.transforms)
    mend_posterize(transform)


def test_the_training_transform_can_travel_to_a_spawned_worker():
    transform = pickle.loads(pickle.dumps(build_train_transform(DataLoaderCfg(input_size=32))))
    assert transform(noise_image(32, 32)).shape == (3, 32, 32)


def test_small_inputs_are_cropped_from_a_padded_image_as_in_the_recipe():
    first = build_train_transform(DataLoaderCfg(input_size=32)).transforms[0]
    assert isinstance(first, transforms.RandomCrop)
    assert (tuple(first.size), first.padding) == ((32, 32), 4)
    picture = noise_image(32, 32)
    seed_generators(0)
    got = first(picture)
    seed_generators(0)
    assert got == transforms.RandomCrop(32, padding=4)(picture)


@pytest.mark.parametrize("build", [build_train_transform, build_eval_transform])
@pytest.mark.parametrize("size", [(28, 28), (72, 72), (32, 48)])
def test_at_small_inputs_an_image_of_another_size_is_refused_with_both_sizes(build, size):
    with pytest.raises(DataError, match=rf"{size[0]}x{size[1]} pixels, but dataloader_cfg\.input_size=32"):
        build(DataLoaderCfg(input_size=32))(noise_image(*size))


def test_evaluation_resizes_crops_and_normalises_as_the_recipe_does():
    picture = noise_image(300, 260)
    official = transforms.Compose(
        [
            transforms.Resize(256, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    assert torch.equal(apply(build_eval_transform(DataLoaderCfg()), picture), apply(official, picture))


def test_evaluation_at_32_pixels_keeps_every_pixel():
    picture = noise_image(32, 32)
    got = apply(build_eval_transform(DataLoaderCfg(input_size=32)), picture)
    back = got * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) + torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    assert torch.allclose(back, to_tensor(picture), atol=1e-6)


@pytest.mark.parametrize(
    "policy", ["", "rand-m9-mstd0.5-inc1", "rand-m9-n3-tweights", "original-mstd0.5", "augmix-m5-w4-d2", "3a"]
)
def test_policies_that_timm_follows_are_accepted(policy):
    assert auto_augment_problem(policy) == ""


@pytest.mark.parametrize("policy", ["none", "rand-x9", "random", "rand-m9-mstd0.5-inc", "rand-m9-", "rand-mx9.5", "original-q1"])
def test_policies_that_timm_refuses_or_reads_only_in_part_are_a_problem(policy):
    assert "rand-m9-mstd0.5-inc1" in auto_augment_problem(policy)
