"""Run the ranks again when they have failed in a way that may pass."""

import logging
from collections.abc import Callable

from tinyexp.errors import WorkerFailed
from tinyexp.launch.report import first_cause
from tinyexp.launch.worker import Failure, Outcome

logger = logging.getLogger("tinyexp")


def with_restarts(attempt: Callable[[int], list[Outcome]], num_processes: int, *, max_restarts: int) -> list[Outcome]:
    """The outcomes of `attempt(0)`, or of the last one, where up to `max_restarts` more are made after failures.

    Made again: a rank was killed, its node was lost, it hangs, or it raised what nobody expects. Not made again: an error that
    its reader has to mend (of `tinyexp.errors`), a rank that left with a status of its own, and the same exception twice in a
    row. `attempt` raises where a signal asks to stop, so that is never followed by another.
    """
    previous, outcomes = None, list[Outcome]()
    for number in range(max_restarts + 1):
        outcomes = attempt(number)
        failures = [(outcome.rank, outcome.failure) for outcome in outcomes if outcome.failure]
        if not failures or number == max_restarts:
            break
        rank, failure = first_cause(failures)
        if not may_pass(failure):
            break
        line = failure.line(rank, num_processes).splitlines()[0]
        if previous is not None and is_repetition(failure, previous):
            logger.warning("%s: twice in a row, so the run is not started a third time", line)
            break
        logger.warning("%s; restart %d of %d, from the newest checkpoint if there is one", line, number + 1, max_restarts)
        previous = failure
    return outcomes


def may_pass(failure: Failure) -> bool:
    """Whether the same run might succeed without anyone mending anything."""
    return failure.exit_status == WorkerFailed.exit_status


def is_repetition(failure: Failure, previous: Failure) -> bool:
    """Whether an exception has come again. Kills and hangs come from outside: two of them need not have one reason."""
    return bool(failure.type_name) and failure.line(0, 1).splitlines()[0] == previous.line(0, 1).splitlines()[0]
