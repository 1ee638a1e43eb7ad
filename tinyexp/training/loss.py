"""Mixing of images and targets, and the loss that goes with it."""

from collections.abc import Callable
from dataclasses import dataclass

from timm.data.mixup import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from tinyexp.limits import Range, range_problems

Criterion = Callable[[Tensor, Tensor], Tensor]
Mixer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # images and classes -> mixed images and soft targets

RANGES = {
    "mixup": Range(0.001, 1000, "0 is off", special=0),
    "cutmix": Range(0.001, 1000, "0 is off", special=0),
    "mixup_prob": Range(0, 1),
    "mixup_switch_prob": Range(0, 1),
    "smoothing": Range(0, 0.99, "0 is off"),  # at 1 a target no longer says which class it is
}


@dataclass
class LossCfg:
    """Mixup, CutMix and label smoothing."""

    mixup: float = 0.8  # alpha of the beta distribution; 0: off; DeiT main.py --mixup
    cutmix: float = 1.0  # alpha of the beta distribution; 0: off; DeiT main.py --cutmix
    mixup_prob: float = 1.0  # share of batches that are mixed; DeiT main.py --mixup-prob
    mixup_switch_prob: float = 0.5  # share of mixed batches that take CutMix where both are on; DeiT main.py --mixup-switch-prob
    mixup_mode: str = "batch"  # one draw a batch, pair or elem; DeiT main.py --mixup-mode
    smoothing: float = 0.1  # label smoothing; DeiT main.py --smoothing

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed, which needs an even number of images in each."""
        return self.mixup > 0 or self.cutmix > 0

    def problems(self) -> list[str]:
        found = list(range_problems("loss_cfg.", self, RANGES))
        if self.mixup_mode not in ("batch", "pair", "elem"):
            found.append(f"loss_cfg.mixup_mode={self.mixup_mode!r}: allowed are batch, pair, elem")
        return found

    def build(self, num_classes: int) -> tuple[Mixer | None, Criterion]:
        """The mixer, or None where mixing is off, and the loss for the targets that it leaves."""
        if self.mixes:
            mixer = Mixup(
                mixup_alpha=self.mixup,
                cutmix_alpha=self.cutmix,
                prob=self.mixup_prob,
                switch_prob=self.mixup_switch_prob,
                mode=self.mixup_mode,
                label_smoothing=self.smoothing,
                num_classes=num_classes,
            )
            return mixer, SoftTargetCrossEntropy()
        return None, LabelSmoothingCrossEntropy(self.smoothing) if self.smoothing else nn.CrossEntropyLoss()
