"""Two processes that take themselves for the only ranks of two nodes."""

import socket

import pytest

from tinyexp.launch.rendezvous import listen
from tinyexp.process import Axis, Environment

LOST = f"the ranks on node {socket.gethostname()} (127.0.0.1) have ended without a report"


@pytest.fixture
def run_on_two_nodes(start, pids):
    def run(job: str) -> list[tuple[int, str]]:
        with listen("127.0.0.1") as held:
            port = held.getsockname()[1]
        environments = [Environment(Axis(rank, 2), Axis(0, 1), "127.0.0.1", port) for rank in (0, 1)]
        ranks = [start("external", job, **environment.variables()) for environment in environments]
        return [(rank.communicate(timeout=180)[1], rank.returncode)[::-1] for rank in ranks]

    return run


def test_ranks_that_vanish_with_their_node_end_the_run_in_one_line(run_on_two_nodes):
    (status, errors), _ = run_on_two_nodes("lose_rank_1")
    assert [line for line in errors.splitlines() if not line.startswith("[W")] == [
        f"{LOST}: the node is lost, or its own output says why"
    ]
    assert status == 7


def test_a_rank_that_fails_is_not_taken_for_lost(run_on_two_nodes):
    (status, errors), (other_status, other_errors) = run_on_two_nodes("fail_on_rank_1")
    assert (status, other_status) == (7, 3)
    assert LOST not in errors
    assert "most likely because another rank failed" in errors
    assert other_errors.endswith("rank 1 of 2: train/c0/5.JPEG cannot be read\n")


def test_ranks_that_are_done_leave_in_peace(run_on_two_nodes):
    assert [(status, "lost" in errors) for status, errors in run_on_two_nodes("sum_over_ranks")] == [(0, False), (0, False)]
