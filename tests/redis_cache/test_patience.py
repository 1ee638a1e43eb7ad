import pytest

from tinyexp.redis_cache.patience import LEAST_S, WAITING_S, Patience


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("num_servers", [1, 6])
@pytest.mark.parametrize("timeout_s", [0.25, 1.0])
def test_servers_that_fail_again_and_again_cost_a_run_less_than_ten_seconds(num_ranks, num_servers, timeout_s):
    now, given_up = 0.0, 0
    ranks = [Patience(num_servers, num_ranks=num_ranks) for _ in range(num_ranks)]
    for _ in range(100):
        for rank in ranks:  # one after the other, so that they wait for each other's waits
            for server in range(num_servers):
                if left_s := min(rank.left_s(server), timeout_s):
                    given_up += rank.spend(server, since=now, until=now + left_s)
                    now += left_s
    assert WAITING_S / 2 < now < 10
    assert given_up == num_ranks * num_servers
    assert not any(rank.left_s(server) for rank in ranks for server in range(num_servers))


def test_a_server_that_is_given_up_leaves_the_others_half_of_the_share():
    patience, now = Patience(3, num_ranks=2), 0.0
    while left_s := patience.left_s(1):
        patience.spend(1, since=now, until=now + left_s)
        now += left_s
    assert now == pytest.approx(WAITING_S / 4, abs=3 * LEAST_S)
    assert patience.spent_s(1) == now
    assert [patience.left_s(0), patience.left_s(2)] == pytest.approx(2 * [WAITING_S / 8], abs=3 * LEAST_S)


def test_time_that_several_processes_waited_at_once_counts_once():
    patience = Patience(2, num_ranks=1)
    for server in (0, 0, 1):
        patience.spend(server, since=10.0, until=10.25)
    patience.spend(1, since=10.2, until=10.5)
    assert [patience.spent_s(0), patience.spent_s(1)] == pytest.approx([0.25, 0.25])
