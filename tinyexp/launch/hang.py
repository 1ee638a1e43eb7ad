"""Name the ranks that hang, for which the others have waited in vain, and show where they are."""

import logging
import time
from collections.abc import Callable, Sequence

from tinyexp.launch.worker import STACKS_SIGNAL, Failure, Outcome

STACKS_S = 3.0  # for a rank to print its stacks, on a busy machine; then it is killed
MOST_STACKS = 4  # ranks that are asked for theirs, one after the other

logger = logging.getLogger("tinyexp")


def hanging_ranks(outcomes: Sequence[Outcome], num_processes: int) -> list[Outcome]:
    """A failure for each rank that hangs: it has neither reported nor ended, and a collective of another has timed out.

    None where no collective has timed out, or where all ranks have reported: then they waited for each other.
    """
    waited = next((outcome for outcome in outcomes if outcome.failure and outcome.failure.is_timeout), None)
    if waited is None or waited.failure is None:
        return []
    silent = sorted(set(range(num_processes)) - {outcome.rank for outcome in outcomes})
    _, _, said = waited.failure.message.splitlines()[0].rpartition("] ")  # gloo starts with the line of its source, in brackets
    reason = f"{waited.failure.type_name}: {said}"
    collective = f"did not come to a collective in which rank {waited.rank} waited ({reason})"
    found = []
    for rank in silent:
        others = ", ".join(str(other) for other in silent if other != rank)
        hangs = f"hangs, or waits for one of {others} that does; one of them" if others else "hangs: it"
        found.append(Outcome(rank, failure=Failure("", f"{hangs} {collective}")))
    return found


def show_stacks(hanging: Sequence[Outcome], num_processes: int, send_signal: Callable[[int, int], None]) -> None:
    """Have ranks that hang print the Python stacks of their threads on stderr. One that is stopped cannot."""
    for outcome in hanging[:MOST_STACKS]:
        assert outcome.failure, "a rank that hangs has failed"
        line = outcome.failure.line(outcome.rank, num_processes)
        logger.error("%s; its Python stacks, unless it is stopped:", line)
        send_signal(outcome.rank, STACKS_SIGNAL)
        time.sleep(STACKS_S)
