"""AdamW with the decay groups and the learning-rate rule of DeiT."""

from dataclasses import dataclass

import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from tinyexp.limits import Range, range_problems

LR_REFERENCE_BATCH = 512  # images; DeiT main.py scales lr by global batch / 512

RANGES = {
    "lr": Range(0, 1e38, "float32 ends there"),
    "weight_decay": Range(0, 1000.0, "0 is off"),
    "opt_eps": Range(1e-30, 1.0, "it keeps the update of a weight without a gradient from 0 / 0"),
    "clip_grad": Range(1e-9, 1e9, "0 or null is off", special=0),
}


@dataclass
class OptimizerCfg:
    """AdamW. Biases, one-dimensional weights, class token and position embedding are not decayed."""

    lr: float = 5e-4  # for a global batch of 512 images; DeiT main.py --lr
    weight_decay: float = 0.05  # of matrices, a step and unit of lr; 0: off; DeiT main.py --weight-decay
    opt_eps: float = 1e-8  # added to the root of the second moment; DeiT main.py --opt-eps
    clip_grad: float | None = None  # largest norm of the gradient; 0 or null: off; DeiT main.py --clip-grad

    def problems(self) -> list[str]:
        return list(range_problems("optimizer_cfg.", self, RANGES))

    def scaled_lr(self, global_batch: int) -> float:
        """lr * global_batch / 512, where the global batch counts the images of one optimizer step once each."""
        return self.lr * global_batch / LR_REFERENCE_BATCH

    def build(self, model: nn.Module, *, global_batch: int) -> torch.optim.AdamW:
        """AdamW over this rank's tensors; group 0 is not decayed, group 1 is. Call after the model is sharded."""
        excluded = getattr(model, "no_weight_decay", set)()
        groups = param_groups_weight_decay(model, self.weight_decay, no_weight_decay_list=excluded)
        return torch.optim.AdamW(
            groups, lr=self.scaled_lr(global_batch), eps=self.opt_eps, betas=(0.9, 0.999), weight_decay=self.weight_decay
        )
