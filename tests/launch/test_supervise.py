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


class ScriptedRanks:
    """Outcomes that come batch by batch, and the signals that were sent."""

    def __init__(self, *batches: list[Outcome]) -> None:
        self._remaining = list(batches)
        self.signals: list[tuple[int, int]] = []  # rank, number

    def arrivals(self, timeout_s: float) -> list[Outcome]:
        time.sleep(0.01)
        return self._remaining.pop(0) if self._remaining else []

    def send_signal(self, rank: int, number: int) -> None:
        self.signals.append((rank, number))


def collected(*batches: list[Outcome], num_processes: int = 2) -> list[Outcome]:
    return collect(ScriptedRanks(*batches), num_processes, stop=StopRequest())


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
    ranks = ScriptedRanks([], [], [CAUSE], [ECHO])
    with StopRequest() as stop:
        signal.raise_signal(number)
        found = collect(ranks, 2, stop=stop)
        with pytest.raises(error):
            stop.raise_if_asked()
    assert (found, ranks.signals) == ([CAUSE, ECHO], [(0, number), (1, number)])


def test_a_second_signal_ends_the_wait(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_S", 0.0)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert collect(ScriptedRanks(), 2, stop=stop) == []


def test_ranks_that_do_not_stop_are_given_up(monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_S", 0.1)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert collect(ScriptedRanks(), 2, stop=stop) == []
