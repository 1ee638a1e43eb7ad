"""The driver's watch over its ranks: until all have reported, one has failed, or a signal asks the run to stop."""

import math
import time
from typing import Protocol

from tinyexp.launch.hang import hanging_ranks, show_stacks
from tinyexp.launch.worker import Outcome
from tinyexp.signals import StopRequest

POLL_S = 0.2
ECHO_S = 2.0  # a lost peer is often reported before the failure that lost it
GRACE_S = 30.0  # for the ranks to finish their step and save, once asked to stop


class Ranks(Protocol):
    """The ranks of a run, as their launcher reaches them."""

    def arrivals(self, timeout_s: float) -> list[Outcome]:
        """The outcomes that have come, after at most `timeout_s`. A rank that died is one too."""
        ...

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank, wherever it is; nothing to one that has ended."""
        ...


def collect(ranks: Ranks, num_processes: int, *, stop: StopRequest) -> list[Outcome]:
    """The outcomes in order of arrival: of all ranks, or, from the first failure on, those that came until it was explained.

    Where ranks have waited in vain for others, those that hang are outcomes too, and print their stacks.
    A first signal is passed on to the ranks, which have GRACE_S to end; a second one ends the wait.
    """
    outcomes: list[Outcome] = []
    deadline = math.inf
    asked = False
    while len(outcomes) < num_processes and time.monotonic() < deadline and stop.count < 2:
        outcomes += ranks.arrivals(POLL_S)
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        if stop.count and not asked:
            for rank in range(num_processes):
                ranks.send_signal(rank, stop.number)
            asked, deadline = True, time.monotonic() + GRACE_S
        elif not asked and not all(failure.is_peer_loss for failure in failures):
            break
        elif not asked and failures:
            deadline = min(deadline, time.monotonic() + ECHO_S)
    if not asked and all(outcome.failure is None or outcome.failure.is_peer_loss for outcome in outcomes):
        hanging = hanging_ranks(outcomes, num_processes)
        show_stacks(hanging, num_processes, ranks.send_signal)
        outcomes += hanging
    return outcomes
