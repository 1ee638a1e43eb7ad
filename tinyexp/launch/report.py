"""From the outcomes of the ranks to their results, or to the one error that explains the run."""

import signal
from collections.abc import Sequence
from typing import Any

from tinyexp.errors import WorkerFailed
from tinyexp.launch.worker import Failure, Outcome


def results(outcomes: Sequence[Outcome], num_processes: int) -> list[Any]:
    """The results in rank order. `outcomes` come in order of arrival.

    Raises: WorkerFailed for the first cause: `rank 1 of 2: ValueError: message`, then that rank's traceback where the message
    alone is not enough. It carries the exit status of the original error.
    """
    failures = [(outcome.rank, outcome.failure) for outcome in outcomes if outcome.failure]
    if failures:
        raise worker_failed(*first_cause(failures), num_processes)
    assert len(outcomes) == num_processes, [outcome.rank for outcome in outcomes]
    return [outcome.result for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]


def first_cause(failures: Sequence[tuple[int, Failure]]) -> tuple[int, Failure]:
    """The earliest failure that is not the mere echo of another rank's, else the earliest."""
    return next((failure for failure in failures if not failure[1].is_peer_loss), failures[0])


def worker_failed(rank: int, failure: Failure, num_processes: int) -> WorkerFailed:
    """The error that a launcher raises for a failed rank."""
    error = WorkerFailed("\n\n".join(filter(None, [failure.line(rank, num_processes), failure.traceback.rstrip()])))
    error.exit_status = failure.exit_status
    return error


def death(exit_code: int | None) -> Failure:
    """The failure of a rank whose process ended without a report. Negative exit codes are signals, as in `subprocess`."""
    if exit_code is None or exit_code >= 0:
        return Failure("", f"ended with status {exit_code} before it reported a result")
    name = signal_name(-exit_code)
    hint = " (possibly out of memory)" if name == "SIGKILL" else ""
    # torch aborts a rank of its own accord when a peer is lost, so another rank's failure is the better explanation
    return Failure("", f"was killed by {name}{hint}", is_peer_loss=name == "SIGABRT")


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
