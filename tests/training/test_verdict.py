import math
from types import SimpleNamespace
from typing import Any

from tinyexp.training.verdict import Verdict, agree


def agreed(*rows: list[float]) -> Verdict:
    """The verdict of ranks that give these losses, bad gradients, signals and waits."""
    accelerator: Any = SimpleNamespace(gather_numbers=lambda mine: [mine, *rows[1:]])
    loss, bad_gradient, signal_number, data_s = rows[0]
    return agree(accelerator, loss=loss, bad_gradient=bool(bad_gradient), signal_number=int(signal_number), data_s=data_s)


def test_a_good_step_has_the_mean_loss_the_longest_wait_and_nobody_to_blame():
    assert agreed([1.0, 0, 0, 0.25], [2.0, 0, 0, 0.5]) == Verdict(loss=1.5, data_s=0.5)
    assert Verdict().bad_rank is None
    assert agreed([1.0, 0, 0, 0.0]).bad_rank is None


def test_a_signal_that_reached_any_rank_reached_all():
    assert agreed([1.0, 0, 0, 0.0], [1.0, 0, 15, 0.0]).signal_number == 15


def test_the_first_rank_with_a_bad_loss_is_to_blame_before_any_with_a_bad_gradient():
    verdict = agreed([1.0, 1, 0, 0.0], [1.0, 0, 0, 0.0], [math.inf, 1, 0, 0.0], [math.nan, 1, 0, 0.0])
    assert (verdict.rank_of_bad_loss, verdict.rank_of_bad_gradient, verdict.bad_rank) == (2, 0, 2)
    assert not math.isfinite(verdict.loss)
    assert agreed([1.0, 0, 0, 0.0], [1.0, 1, 0, 0.0]).bad_rank == 1
