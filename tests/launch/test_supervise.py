import signal
import time

import pytest

from tinyexp import signals
from tinyexp.launch import supervise
from tinyexp.launch.supervise import collect
from tinyexp.launch.worker import Failure, Outcome
from tinyexp.signals import StopRequest

ECHO = Outcome(0, failure=Failure("RuntimeError", "Connection closed by peer", is_peer_loss=True))
CAUSE = Outcome(1, failure=Failure("ValueError", "the cause"))


def arriving(*batches: list[Outcome]):
    remaining = list(batches)

    def arrivals(timeout_s: float) -> list[Outcome]:
        time.sleep(0.01)
        return remaining.pop(0) if remaining else []

    return arrivals


def collected(*batches: list[Outcome], num_processes: int = 2) -> list[Outcome]:
    return collect(arriving(*batches), num_processes, stop=StopRequest(), ask_to_stop=lambda: None)


def test_all_outcomes_are_awaited():
    assert collected([Outcome(1)], [], [Outcome(0)]) == [Outcome(1), Outcome(0)]


def test_a_cause_ends_the_wait():
    assert collected([CAUSE]) == [CAUSE]


def test_an_echo_leaves_time_for_the_cause(monkeypatch):
    monkeypatch.setattr(supervise, "ECHO_S", 60.0)
    assert collected([ECHO], [], [CAUSE], num_processes=3) == [ECHO, CAUSE]


def test_an_echo_that_nothing_explains_ends_the_wait_too(monkeypatch):
    monkeypatch.setattr(supervise, "ECHO_S", 0.1)
    assert collected([ECHO]) == [ECHO]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_asks_the_ranks_once_and_lets_them_finish(number, error):
    asked = []
    with StopRequest() as stop:
        signal.raise_signal(number)
        found = collect(arriving([], [], [CAUSE], [ECHO]), 2, stop=stop, ask_to_stop=lambda: asked.append(1))
        with pytest.raises(error):
            stop.raise_if_asked()
    assert (found, asked) == ([CAUSE, ECHO], [1])


def test_a_second_signal_ends_the_wait(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_S", 0.0)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert collect(arriving(), 2, stop=stop, ask_to_stop=lambda: None) == []


def test_ranks_that_do_not_stop_are_given_up(monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_S", 0.1)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert collect(arriving(), 2, stop=stop, ask_to_stop=lambda: None) == []
