"""The driver's watch over its ranks: until all have reported, one has failed, or a signal asks the run to stop."""

import math
import time
from collections.abc import Callable

from tinyexp.launch.worker import Outcome
from tinyexp.signals import StopRequest

POLL_S = 0.2
ECHO_S = 2.0  # a lost peer is often reported before the failure that lost it
GRACE_S = 30.0  # for the ranks to finish their step and save, once asked to stop


def collect(
    arrivals: Callable[[float], list[Outcome]], num_processes: int, *, stop: StopRequest, ask_to_stop: Callable[[], None]
) -> list[Outcome]:
    """The outcomes in order of arrival: of all ranks, or, from the first failure on, those that came until it was explained.

    arrivals(timeout_s): waits at most so long and returns what came. A rank that died is an outcome too.
    After a first signal the ranks are asked once and have GRACE_S; a second signal ends the wait.
    """
    outcomes: list[Outcome] = []
    deadline = math.inf
    asked = False
    while len(outcomes) < num_processes and time.monotonic() < deadline and stop.count < 2:
        outcomes += arrivals(POLL_S)
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        if stop.count and not asked:
            ask_to_stop()
            asked, deadline = True, time.monotonic() + GRACE_S
        elif not asked and not all(failure.is_peer_loss for failure in failures):
            break
        elif not asked and failures:
            deadline = min(deadline, time.monotonic() + ECHO_S)
    return outcomes
