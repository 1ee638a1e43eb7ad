import json
import os
import signal

import pytest

from tests.launch import jobs
from tests.launch.conftest import still_alive
from tests.launch.test_local import launch
from tinyexp.errors import WorkerFailed
from tinyexp.launch.local import run_local
from tinyexp.launch.restart import with_restarts
from tinyexp.launch.worker import Failure, Outcome

CONTINUED = "from the newest checkpoint if there is one"
DONE = [Outcome(0, "a result"), Outcome(1, "a result")]
KILLED = [Outcome(1, failure=Failure("", "was killed by SIGKILL"))]
ECHO = Outcome(0, failure=Failure("RuntimeError", "Connection closed by peer", is_peer_loss=True))
TWO_ON_CPU = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0})


def raised(message: str, *, exit_status: int = WorkerFailed.exit_status) -> list[Outcome]:
    return [Outcome(1, failure=Failure("ValueError", message, exit_status=exit_status))]


def attempted(*attempts: list[Outcome], max_restarts: int) -> tuple[int, list[Outcome]]:
    """How many attempts were made, and the outcomes."""
    numbers: list[int] = []

    def attempt(number: int) -> list[Outcome]:
        numbers.append(number)
        return attempts[number]

    outcomes = with_restarts(attempt, 2, max_restarts=max_restarts)
    assert numbers == list(range(len(numbers)))
    return len(numbers), outcomes


def test_a_killed_rank_is_followed_by_another_attempt_and_one_line_says_so(caplog):
    assert attempted([ECHO, *KILLED], KILLED, DONE, max_restarts=5) == (3, DONE)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 1 of 2 was killed by SIGKILL; restart {number} of 5, {CONTINUED}" for number in (1, 2)
    ]


def test_the_last_failure_stays_when_the_restarts_are_used_up():
    assert attempted(KILLED, KILLED, KILLED, max_restarts=2) == (3, KILLED)
    assert attempted(KILLED, max_restarts=0) == (1, KILLED)


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6, 130, 143])
def test_what_its_reader_has_to_mend_is_not_tried_again(status):
    failed = raised("train/c0/5.JPEG cannot be read", exit_status=status)
    assert attempted(failed, max_restarts=5) == (1, failed)


def test_the_same_exception_twice_in_a_row_is_not_tried_a_third_time(caplog):
    assert attempted(raised("step 7\nfirst"), raised("step 7\nsecond"), max_restarts=5)[0] == 2
    assert caplog.records[-1].getMessage() == (
        "rank 1 of 2: ValueError: step 7: twice in a row, so the run is not started a third time"
    )
    assert attempted(raised("step 7"), raised("step 9"), KILLED, raised("step 9"), DONE, max_restarts=5)[0] == 5


def test_a_stop_is_no_failure():
    def stopped(number: int) -> list[Outcome]:
        raise SystemExit(128 + signal.SIGTERM)

    with pytest.raises(SystemExit):
        with_restarts(stopped, 2, max_restarts=5)


def test_ranks_of_the_next_attempt_know_its_number():
    assert launch(jobs.read_attempt) == [0, 0]
    with pytest.raises(WorkerFailed, match=r"^rank 1 of 2: KeyError: 'weight'"):
        launch(jobs.fail_always, max_restarts=5)


def test_one_process_runs_in_a_child_where_a_restart_may_be_needed():
    assert run_local(os.getpid, 1, start_method="forkserver", max_restarts=1) != [os.getpid()]


def test_a_rank_killed_twice_leaves_a_run_that_ends_well(start, pids):
    command = start("fork", "lose_rank_1_at_first", **{jobs.MAX_RESTARTS: "3", jobs.KILLS: "2"})
    output, errors = command.communicate(timeout=180)
    assert (command.returncode, output.splitlines()[-2:]) == (0, ["3.0", "3.0"]), errors
    line = "WARNING rank 1 of 2 was killed by SIGKILL (possibly out of memory); restart {} of 3, " + CONTINUED
    assert [each for each in errors.splitlines() if each[0] != "["] == [line.format(1), line.format(2)]  # gloo warns in brackets
    assert len(list(pids.iterdir())) == 7
    assert still_alive(pids) == []


@pytest.mark.ray
def test_a_killed_worker_leaves_a_run_that_ends_well(start, pids):
    command = start("ray", "lose_rank_1_at_first", TWO_ON_CPU, **{jobs.MAX_RESTARTS: "3"})
    output, errors = command.communicate(timeout=180)
    assert (command.returncode, output.splitlines()[-2:]) == (0, ["3.0", "3.0"]), errors
    death = "rank 1 of 2 died without a report (killed, possibly out of memory)"
    line = f"WARNING {death}; restart 1 of 3, {CONTINUED}"
    assert [each for each in errors.splitlines() if each[0] != "["] == [line]
    assert len(list(pids.iterdir())) == 5
    assert still_alive(pids) == []
