import json
import time

import pytest

from tests.launch.conftest import still_alive
from tests.launch.jobs import MAX_RESTARTS
from tests.launch.test_external import TORCHRUN
from tinyexp.launch.hang import hanging_ranks
from tinyexp.launch.worker import Failure, Outcome

TIMEOUT = Failure("RuntimeError", "[gloo/tcp.cc:78] Timed out waiting 3000ms\nfor recv", is_peer_loss=True, is_timeout=True)
CLOSED = Failure("RuntimeError", "Connection closed by peer", is_peer_loss=True)
TWO_ON_CPU = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0})
HANGS = "rank 1 of 2 hangs: it did not come to a collective in which rank 0 waited (RuntimeError: Timed out waiting 3000ms"
WITHIN_S = 120.0  # timeout, start and restart, on a busy machine; a collective would wait for minutes


def test_ranks_that_others_wait_for_hang_unless_they_have_reported():
    outcomes = [Outcome(2, failure=CLOSED), Outcome(0, failure=TIMEOUT), Outcome(4)]
    hanging = hanging_ranks(outcomes, 5)
    assert [outcome.rank for outcome in hanging] == [1, 3]
    assert hanging[0].failure
    assert hanging[0].failure.line(1, 5) == (
        "rank 1 of 5 hangs, or waits for one of 3 that does; one of them did not come to a collective in which rank 0 waited "
        "(RuntimeError: Timed out waiting 3000ms)"
    )


def test_nobody_hangs_where_a_rank_was_lost_or_all_wait_for_each_other():
    assert hanging_ranks([Outcome(0, failure=CLOSED)], 2) == []
    assert hanging_ranks([Outcome(0, failure=TIMEOUT), Outcome(1, failure=TIMEOUT)], 2) == []


def lines_of(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if not line.startswith("[")]  # of torch and gloo


def test_a_stopped_rank_is_named_and_nothing_of_it_is_left(start, pids):
    begin = time.monotonic()
    command = start("fork", "stop_rank_1_at_first")
    _, errors = command.communicate(timeout=180)
    assert time.monotonic() - begin < WITHIN_S
    heading, line = lines_of(errors)
    assert heading.startswith(f"ERROR {HANGS}")
    assert line.startswith(HANGS)
    assert command.returncode == 7
    assert len(list(pids.iterdir())) == 4
    assert still_alive(pids) == []


@pytest.mark.parametrize("launcher", [("fork",), pytest.param(("ray", TWO_ON_CPU), marks=pytest.mark.ray)], ids=["local", "ray"])
def test_a_sleeping_rank_is_named_shows_its_stack_and_is_started_again(start, pids, launcher):
    begin = time.monotonic()
    name, *settings = launcher
    command = start(name, "sleep_on_rank_1_at_first", *settings, **{MAX_RESTARTS: "1"})
    output, errors = command.communicate(timeout=180)
    assert time.monotonic() - begin < WITHIN_S
    assert (command.returncode, output.splitlines()) == (0, ["3.0", "3.0"]), errors
    heading, *stacks, warning = lines_of(errors)
    assert heading.startswith(f"ERROR {HANGS}")
    assert any("jobs.py" in line and line.endswith("in sum_within_seconds") for line in stacks)
    assert warning.startswith(f"WARNING {HANGS}")
    assert warning.endswith("; restart 1 of 1, from the newest checkpoint if there is one")
    assert still_alive(pids) == []


def test_under_torchrun_the_others_say_which_rank_did_not_come(start, pids):
    command = start("external", "sleep_on_rank_1_at_first", program=TORCHRUN)
    _, errors = command.communicate(timeout=180)
    assert command.returncode == 1
    lines = errors.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("error: rank 0 of 2: RuntimeError: ")]
    assert "Timed out waiting 3000ms" in lines[place]
    assert lines[place + 1] == "(most likely because rank 1 did not come)"
    assert still_alive(pids) == []
