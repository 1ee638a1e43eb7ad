"""What the ranks tell each other of a step before they take it."""

import math
from dataclasses import dataclass

from tinyexp.accelerators.base import Accelerator


@dataclass(frozen=True)
class Verdict:
    """One step as all ranks saw it; every rank holds the same."""

    loss: float = math.nan  # mean over the replicas
    data_s: float = 0.0  # that the slowest rank waited for its images
    signal_number: int = 0  # that some rank has received; 0: none
    rank_of_bad_loss: int | None = None  # the first whose loss is not finite
    rank_of_bad_gradient: int | None = None  # the first with a gradient that is not finite

    @property
    def bad_rank(self) -> int | None:
        """The rank that must say why the step cannot be taken; None where it can."""
        return self.rank_of_bad_gradient if self.rank_of_bad_loss is None else self.rank_of_bad_loss


def agree(accelerator: Accelerator, *, loss: float, bad_gradient: bool, signal_number: int, data_s: float) -> Verdict:
    """The verdict on a step of which every rank gives what it saw, by one exchange. Every rank must call it."""
    rows = accelerator.gather_numbers([loss, bad_gradient, signal_number, data_s])
    losses, bad_gradients, signals, waits = zip(*rows, strict=True)
    return Verdict(
        loss=sum(losses) / len(losses),  # all replicas have equally many ranks
        data_s=max(waits),
        signal_number=int(max(signals)),
        rank_of_bad_loss=next((rank for rank, each in enumerate(losses) if not math.isfinite(each)), None),
        rank_of_bad_gradient=next((rank for rank, each in enumerate(bad_gradients) if each), None),
    )
