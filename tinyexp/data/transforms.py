"""Images to normalised tensors: the augmentation of the DeiT recipe, and its evaluation transform."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from PIL import Image
from torchvision import transforms

from tinyexp.errors import DataError

if TYPE_CHECKING:
    from tinyexp.data.loaders import DataLoaderCfg

# timm is imported where it is needed: it takes seconds, and evaluation does without it.

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST_UNRESIZED = 32  # DeiT datasets.py @ 7e160fe4: at this input size and below an image keeps its pixels
ERASE_MODES = ("pixel", "rand", "const")
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest", "box", "hamming", "random")


def build_train_transform(cfg: "DataLoaderCfg") -> transforms.Compose:
    """PIL image -> float32 (3, input_size, input_size), with the augmentation of DeiT datasets.py @ 7e160fe4.

    Draws from Python's `random`, numpy and torch, as the official transform does and in the same order.
    """
    from timm.data.transforms_factory import create_transform

    transform = create_transform(
        input_size=cfg.input_size,
        is_training=True,
        hflip=cfg.hflip,
        color_jitter=cfg.color_jitter,
        auto_augment=cfg.auto_augment or None,
        interpolation=cfg.train_interpolation,
        re_prob=cfg.reprob,
        re_mode=cfg.remode,
        re_count=cfg.recount,
    )
    assert isinstance(transform, transforms.Compose)
    if cfg.input_size <= LARGEST_UNRESIZED:
        transform.transforms[0] = SameSizeRandomCrop(cfg.input_size, padding=4)
    mend_posterize(transform)
    return transform


def build_eval_transform(cfg: "DataLoaderCfg") -> transforms.Compose:
    """PIL image -> float32 (3, input_size, input_size): resize and centre crop above 32 pixels, neither below."""
    size = cfg.input_size
    to_size: list[Any] = [RequireSize(size)]
    if size > LARGEST_UNRESIZED:
        resize = transforms.Resize(int(size / cfg.eval_crop_ratio), transforms.InterpolationMode.BICUBIC)
        to_size = [resize, transforms.CenterCrop(size)]
    return transforms.Compose([*to_size, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])


def auto_augment_problem(policy: str) -> str:
    """Why timm cannot follow the augmentation policy, or "" where it can. timm itself passes over parts it does not know."""
    from timm.data.transforms_factory import create_transform

    if not policy:
        return ""
    examples = 'write it like "rand-m9-mstd0.5-inc1", "original-mstd0.5" or "augmix-m5-w4-d2", or "" for none'
    for section in policy.split("-")[1:]:
        if not re.search(r"\d", section) and section != "tweights":
            return f"timm would ignore its part {section!r}; {examples}"
    try:
        create_transform(input_size=64, is_training=True, auto_augment=policy)
    except (AssertionError, ValueError, KeyError) as error:
        return f"timm cannot read it ({error}); {examples}"
    return ""


class RequireSize:
    """Passes square images of the input size on. Other sizes would fail later, when a batch is stacked, without a cause."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """Raises: DataError that says both sizes."""
        if image.size != (self.size, self.size):
            raise DataError(
                f"the image is {image.size[0]}x{image.size[1]} pixels, but dataloader_cfg.input_size={self.size}: "
                f"at {LARGEST_UNRESIZED} and below the recipe does not resize; store the images as "
                f"{self.size}x{self.size}, or set dataloader_cfg.input_size and module_cfg.img_size above {LARGEST_UNRESIZED}"
            )
        return image


class SameSizeRandomCrop(transforms.RandomCrop):
    """A random crop out of the padded image, of the image's own size; other sizes are refused as in evaluation."""

    def forward(self, img: Any) -> Any:
        return super().forward(RequireSize(self.size[0])(img))


def mend_posterize(transform: transforms.Compose) -> None:
    """Make posterize with 0 bits give a black image, in this transform only.

    timm 1.0.31 asks for 0 bits in about one of 800 images of the recipe. Older Pillow answered with black, Pillow 13 raises.
    No random number is drawn differently, and every other image stays the same byte for byte.
    """
    from timm.data.auto_augment import posterize

    for op in _augment_ops(transform):
        if op.aug_fn is posterize:
            op.aug_fn = functools.partial(_posterize_or_black, posterize=posterize)


def _posterize_or_black(
    image: Image.Image, bits_to_keep: int, *, posterize: Callable[..., Image.Image], **options: Any
) -> Image.Image:
    if bits_to_keep <= 0:
        return Image.new(image.mode, image.size)
    return posterize(image, bits_to_keep, **options)


def _augment_ops(transform: transforms.Compose) -> Iterator[Any]:
    from timm.data.auto_augment import AugMixAugment, AutoAugment, RandAugment

    for step in transform.transforms:
        if isinstance(step, AutoAugment):
            yield from (op for sub_policy in step.policy for op in sub_policy)
        elif isinstance(step, RandAugment | AugMixAugment):
            yield from step.ops
