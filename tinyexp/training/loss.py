"""Mixing of images and targets, and the loss that goes with it."""

from collections.abc import Callable
from dataclasses import dataclass

from timm.data.mixup import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

Criterion = Callable[[Tensor, Tensor], Tensor]
Mixer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # images and classes -> mixed images and soft targets


@dataclass
class LossCfg:
    """Mixup, CutMix and label smoothing."""

    mixup: float = 0.8  # alpha of the beta distribution; 0: off; DeiT main.py --mixup
    cutmix: float = 1.0  # alpha of the beta distribution; 0: off; DeiT main.py --cutmix
    mixup_prob: float = 1.0  # share of batches that are mixed; DeiT main.py --mixup-prob
    mixup_switch_prob: float = 0.5  # share of mixed batches that take CutMix where both are on
    mixup_mode: str = "batch"  # one draw a batch, pair or elem
    smoothing: float = 0.1  # label smoothing; DeiT main.py --smoothing

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed, which needs an even number of images in each."""
        return self.mixup > 0 or self.cutmix > 0

    def problems(self) -> list[str]:
        found = [
            f"loss_cfg.{name}={getattr(self, name)}: a number from 0 to 1 is needed"
            for name in ("mixup_prob", "mixup_switch_prob", "smoothing")
            if not 0.0 <= getattr(self, name) <= 1.0
        ]
        found += [
            f"loss_cfg.{name}={getattr(self, name)}: a number >= 0 is needed, 0 is off"
            for name in ("mixup", "cutmix")
            if getattr(self, name) < 0
        ]
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
