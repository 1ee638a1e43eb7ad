"""A moving average of the weights that lives on the shards of each rank: no collective, no whole copy."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyexp.limits import Range, range_problems
from tinyexp.parallel.apply import Parameters

DECAY = Range(0, 1 - 1e-9, "at 1 the average would never move")


@dataclass
class EmaCfg:
    """A moving average of the weights, evaluated beside them."""

    model_ema: bool = True  # keep and evaluate the average; DeiT main.py --model-ema
    model_ema_decay: float = 0.99996  # DeiT main.py --model-ema-decay; share of the old average that a step keeps

    def problems(self) -> list[str]:
        return list(range_problems("ema_cfg.", self, {"model_ema_decay": DECAY}))

    def build(self, parameters: Parameters) -> "ShardEma | None":
        return ShardEma(parameters, self.model_ema_decay) if self.model_ema else None


class ShardEma:
    """average = decay * average + (1 - decay) * weights after every step, the rule of timm's ModelEma."""

    def __init__(self, parameters: Parameters, decay: float) -> None:
        self.decay = decay
        self._live = parameters.by_name
        self.average = {name: weight.detach().clone() for name, weight in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        average = list(self.average.values())
        torch._foreach_mul_(average, self.decay)
        torch._foreach_add_(average, list(self._live.values()), alpha=1.0 - self.decay)

    @torch.no_grad()
    def load(self, average: Mapping[str, Tensor]) -> None:
        """Take over local averages by name."""
        for name, value in average.items():
            self.average[name].copy_(value)

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Run a block on the averaged weights; the live ones come back afterwards, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._live.items():
            kept = weight.clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(kept)
