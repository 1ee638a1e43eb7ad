"""How far a measured number may be from the recorded one, and how far the worst one was."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.golden.record import QKV_BIAS, Checksum

KEY_BIAS_BOUND = 1e-3  # of the norm of a fused bias in float32, one third of which is rounding noise; see `record.bias_parts`


@dataclass(frozen=True)
class Bounds:
    """What another CPU or another order of sums may change. Float64 tells a wrong formula from rounding."""

    loss: float  # absolute; of a step and of an evaluation
    first_epoch_loss: float  # the same, while the weights have hardly moved
    gradient_norm: float  # relative
    norm: float  # relative; of a tensor: weight, average, moment, logits
    sum: float  # absolute; plain and weighted sum of a tensor
    hits: int  # of an evaluation; in float32 two classes of an image can tie to the last bit
    logits: float  # absolute; forward pass of one batch
    gradients: float  # backward pass of one batch; absolute in float64, relative to the tensor's norm in float32


BOUNDS = {
    "f64": Bounds(
        loss=1e-10, first_epoch_loss=1e-10, gradient_norm=1e-10, norm=1e-9, sum=1e-9, hits=0, logits=1e-12, gradients=1e-12
    ),
    "f32": Bounds(loss=2e-5, first_epoch_loss=1e-6, gradient_norm=1e-4, norm=1e-5, sum=1e-3, hits=1, logits=5e-6, gradients=1e-5),
}


@dataclass
class Worst:
    """The largest difference of each quantity so far, for the table at the end of a session."""

    seen: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)  # mesh, dtype, quantity -> value, bound

    def check(self, mesh: str, dtype: str, quantity: str, difference: float, bound: float) -> None:
        """Raises: AssertionError unless the difference is within its bound; one that is no number is not."""
        key = (mesh, dtype, quantity)
        before = self.seen.get(key, (0.0, bound))[0]
        self.seen[key] = (difference if math.isnan(difference) else max(before, difference), bound)
        assert difference <= bound, f"{mesh} {dtype}: {quantity} is {difference:.3g} from the record, allowed {bound:g}"

    def table(self) -> list[str]:
        rows = sorted(self.seen.items(), key=lambda row: (row[0][2], row[0][1], row[0][0]))
        return [
            f"{quantity:<34} {dtype}  {mesh:<22} worst {worst:8.1e}   allowed {bound:g}"
            for (mesh, dtype, quantity), (worst, bound) in rows
        ]


def absolute(found: Iterable[float], recorded: Iterable[float]) -> float:
    """The largest absolute difference of two equally long rows of numbers."""
    return max((_distance(one, other) for one, other in zip(found, recorded, strict=True)), default=0.0)


def relative(found: Iterable[float], recorded: Iterable[float]) -> float:
    """The largest difference of two rows as a share of the recorded number."""
    return max((_distance(one, other) / abs(other) for one, other in zip(found, recorded, strict=True)), default=0.0)


def of_norms(found: Mapping[str, Checksum], recorded: Mapping[str, Checksum]) -> float:
    """The largest difference of the tensors' norms, as a share of the norm."""
    return relative(*_in_order(found, recorded, "l2"))


def of_sums(found: Mapping[str, Checksum], recorded: Mapping[str, Checksum]) -> float:
    """The largest absolute difference of the tensors' plain and weighted sums."""
    return max(absolute(*_in_order(found, recorded, kind)) for kind in ("sum", "wsum"))


def of_rows(found: Sequence[Sequence[float]], recorded: Sequence[Sequence[float]]) -> float:
    """The distance of two matrices as a share of the recorded one's norm."""
    flat = [[number for row in matrix for number in row] for matrix in (found, recorded)]
    return math.dist(*flat) / math.hypot(*flat[1])


def reproducible(tensors: Mapping[str, Checksum]) -> dict[str, Checksum]:
    """Without the fused biases, a third of which is noise in float32."""
    return {name: value for name, value in tensors.items() if not name.endswith((QKV_BIAS, f"{QKV_BIAS}[k]"))}


def fused_biases(tensors: Mapping[str, Checksum]) -> dict[str, Checksum]:
    return {name: value for name, value in tensors.items() if name.endswith(QKV_BIAS)}


def _distance(one: float, other: float) -> float:
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance


def _in_order(found: Mapping[str, Checksum], recorded: Mapping[str, Checksum], kind: str) -> tuple[list[float], list[float]]:
    assert found.keys() == recorded.keys(), f"other tensors: {sorted(found.keys() ^ recorded.keys())}"
    return [found[name][kind] for name in recorded], [recorded[name][kind] for name in recorded]
