import pytest

from tinyexp.errors import WorkerFailed
from tinyexp.launch.report import death, results
from tinyexp.launch.worker import Failure, Outcome

ECHO = Failure("RuntimeError", "Connection closed by peer", is_peer_loss=True)
CAUSE = Failure("DataError", "5.JPEG cannot be read", exit_status=3, is_ours=True)


def test_results_come_in_rank_order_whatever_the_order_of_arrival():
    assert results([Outcome(2, "c"), Outcome(0, "a"), Outcome(1, "b")], 3) == ["a", "b", "c"]


def test_the_first_cause_is_named_and_not_the_echo_that_came_before_it():
    with pytest.raises(WorkerFailed, match=r"^rank 1 of 2: 5.JPEG cannot be read$") as caught:
        results([Outcome(0, failure=ECHO), Outcome(1, failure=CAUSE)], 2)
    assert caught.value.exit_status == 3


def test_an_echo_is_named_where_nothing_explains_it():
    with pytest.raises(WorkerFailed, match=r"^rank 0 of 2: RuntimeError: Connection closed by peer$") as caught:
        results([Outcome(0, failure=ECHO)], 2)
    assert caught.value.exit_status == 7


def test_the_traceback_of_the_rank_follows_its_error():
    failure = Failure("KeyError", "'weight'", traceback="Traceback (most recent call last):\n  the place\n")
    with pytest.raises(WorkerFailed) as caught:
        results([Outcome(1, failure=failure)], 2)
    assert str(caught.value).splitlines() == [
        "rank 1 of 2: KeyError: 'weight'",
        "",
        "Traceback (most recent call last):",
        "  the place",
    ]


@pytest.mark.parametrize(
    ("exit_code", "line"),
    [
        (-9, "rank 1 of 2 was killed by SIGKILL (possibly out of memory)"),
        (-11, "rank 1 of 2 was killed by SIGSEGV"),
        (-250, "rank 1 of 2 was killed by signal 250"),
        (3, "rank 1 of 2 ended with status 3 before it reported a result"),
    ],
)
def test_a_death_without_a_report_is_told_by_its_exit_code(exit_code, line):
    assert death(exit_code).line(1, 2) == line


def test_an_abort_gives_way_to_a_failure_that_explains_it():
    with pytest.raises(WorkerFailed, match=r"^rank 1 of 2: 5.JPEG cannot"):
        results([Outcome(0, failure=death(-6)), Outcome(1, failure=CAUSE)], 2)
