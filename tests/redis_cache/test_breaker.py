from tinyexp.redis_cache.breaker import FIRST_PAUSE_S, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(breaker: Breaker, clock: Clock, *, waited_s: float = 0.25) -> bool:
    since = clock.now
    clock.now += waited_s
    return breaker.failed(0, since=since)


def test_after_a_failure_there_is_a_pause_and_then_one_try():
    breaker = Breaker(2, clock=(clock := Clock()))
    assert breaker.allows(0)
    assert fail(breaker, clock)
    assert not breaker.allows(0)
    assert breaker.allows(1)
    clock.now += FIRST_PAUSE_S
    assert [breaker.allows(0), breaker.allows(0)] == [True, False]
    breaker.succeeded(0)
    assert [breaker.allows(0), breaker.allows(0)] == [True, True]


def test_each_failure_in_a_row_doubles_the_pause_and_only_the_first_is_news():
    breaker = Breaker(1, clock=(clock := Clock()))
    news, pauses = [], []
    for _ in range(4):
        news.append(fail(breaker, clock, waited_s=0.0))
        start = clock.now
        while not breaker.allows(0):
            clock.now += 0.5
        pauses.append(clock.now - start)
    assert news == [True, False, False, False]
    assert pauses == [5.0, 10.0, 20.0, 40.0]


def test_pauses_grow_up_to_the_largest():
    breaker = Breaker(1, largest_pause_s=20.0, clock=(clock := Clock()))
    for _ in range(6):
        clock.now += 1
        fail(breaker, clock)
    clock.now += 19.9
    assert not breaker.allows(0)
    clock.now += 0.2
    assert [breaker.is_fine(0), breaker.takes_turn(0), breaker.takes_turn(0)] == [False, True, False]


def test_processes_that_waited_for_the_same_failure_count_as_one():
    breaker = Breaker(1, clock=(clock := Clock()))
    since = [clock.now] * 10
    clock.now += 0.25
    assert [breaker.failed(0, since=start) for start in since] == [True] + 9 * [False]
    clock.now += FIRST_PAUSE_S
    assert breaker.allows(0)
