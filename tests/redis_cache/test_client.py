import logging
import multiprocessing
import os
import signal
import threading
import time
from typing import cast

import pytest

from tests.helpers.redis_servers import client_of, needs_redis, own_servers, plain_server, stopped
from tinyexp.redis_cache.breaker import FIRST_PAUSE_S
from tinyexp.redis_cache.client import PREFIX, RedisByteCache
from tinyexp.redis_cache.counters import Counts
from tinyexp.redis_cache.guard import answers
from tinyexp.redis_cache.patience import WAITING_S, Patience
from tinyexp.redis_cache.shards import LOCAL_TIMEOUT_S, Shards

pytestmark = [pytest.mark.redis, needs_redis]

FILES = {f"set/c{index % 3}/{index} \udce9.JPEG:20000:1": os.urandom(20_000) for index in range(40)}  # a name that is not UTF-8
KEYS = list(FILES)


@pytest.fixture
def servers():
    with own_servers(3) as running:
        yield running


@pytest.fixture
def cache(servers):
    cache = RedisByteCache(servers.shards)
    yield cache
    cache.close()


def test_a_batch_comes_back_verbatim_and_what_is_missing_is_none(cache):
    assert cache.get_many(KEYS[:4]) == [None] * 4
    cache.put_many(FILES)
    assert cache.get_many([*KEYS, "another"]) == [*FILES.values(), None]
    assert cache.counts == Counts(hits=40, misses=5, bytes=800_000)


def test_keys_carry_the_prefix_and_are_dealt_out_over_the_servers(cache, servers):
    cache.put_many(FILES)
    sizes = []
    for shard in servers.shards.servers:
        with client_of(shard) as client:
            sizes.append(client.info("keyspace")["db0"]["keys"])
            assert client.get(PREFIX + b"nothing") is None
    assert sum(sizes) == 40
    assert min(sizes) > 0


def test_values_larger_than_one_request_pass_in_parts_and_huge_ones_stay_on_disk(cache):
    large = {f"large{index}": os.urandom(3 * 2**20) for index in range(3)}
    cache.put_many(large | {"huge": bytes(33 * 2**20)})
    assert cache.get_many([*large, "huge"]) == [*large.values(), None]
    assert cache.counts.errors == 0


def test_damaged_truncated_foreign_and_swapped_values_are_misses_and_are_replaced(cache, servers):
    cache.put_many(FILES)
    for shard in servers.shards.servers:
        with client_of(shard) as client:
            here = [name for name in (PREFIX + key.encode(errors="surrogateescape") for key in KEYS) if client.get(name)]
            stored = cast(list[bytes], client.mget(here[:4]))
            client.set(here[0], stored[0][:-1])
            client.set(here[1], stored[1][:100] + bytes([stored[1][100] ^ 1]) + stored[1][101:])
            client.set(here[2], b"\xff\xd8 another program's")
            client.set(here[3], stored[2])
    found = cache.get_many(KEYS)
    assert sum(value is None for value in found) == 12
    assert all(value in (None, FILES[key]) for key, value in zip(KEYS, found, strict=True))
    assert cache.counts.damaged == 12
    cache.put_many(FILES)
    assert cache.get_many(KEYS) == list(FILES.values())


def test_a_full_server_keeps_what_it_has_and_is_not_asked_again_for_each_value(caplog):  # A15
    with plain_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
        cache = RedisByteCache(Shards((server.shard(),), b"seal"))
        many = {f"image{index}": os.urandom(20_000) for index in range(300)}
        with caplog.at_level(logging.WARNING, logger="tinyexp"):
            for _epoch in range(3):
                for start in range(0, 300, 10):
                    keys = list(many)[start : start + 10]
                    missing = [key for key, value in zip(keys, cache.get_many(keys), strict=True) if value is None]
                    cache.put_many({key: many[key] for key in missing})
        assert 1 <= cache.counts.refused <= 10
        assert cache.counts.errors == 0
        assert cache.counts.hits > 100
        assert [value for value in cache.get_many(list(many)) if value is not None] == list(many.values())[
            : cache.counts.hits // 3
        ]
        cache.close()
    [message] = [record.getMessage() for record in caplog.records]
    assert "is full; what does not fit is read from disk" in message


def find_again(cache: RedisByteCache) -> None:
    """Use the cache until all its servers have been found to answer again, beside the batches."""
    deadline = time.monotonic() + 10
    while None in cache.get_many(KEYS):
        assert time.monotonic() < deadline
        cache.put_many(FILES)
        time.sleep(0.01)


def test_a_dead_server_costs_nothing_and_is_used_again_once_it_is_back(servers, caplog):
    later_s = 0.0
    cache = RedisByteCache(servers.shards, clock=lambda: time.monotonic() + later_s)
    cache.put_many(FILES)
    for pid in servers.pids:
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="tinyexp"):
        for _ in range(20):
            assert cache.get_many(KEYS) == [None] * 40
            cache.put_many(FILES)
    assert cache.counts.errors == 3  # each was tried once in the 20 epochs
    assert sum(map(cache._patience.spent_s, range(3))) < 1.0
    told = [record.getMessage() for record in caplog.records]
    assert [any(str(shard) in line for line in told) for shard in servers.shards.servers] == [True] * 3
    assert len(told) == 3
    while not all(answers(shard.path) for shard in servers.shards.servers):  # their guard starts them again
        assert time.monotonic() < start + 30
        time.sleep(0.05)
    assert cache.get_many(KEYS) == [None] * 40
    assert cache.counts.errors == 3
    later_s = FIRST_PAUSE_S
    find_again(cache)
    assert cache.get_many(KEYS) == list(FILES.values())
    cache.close()


def test_silent_servers_are_waited_for_at_the_same_time_and_once(cache, servers, monkeypatch):
    waits, spend = [], Patience.spend

    def noted(self, index, *, since, until):
        waits.append((since, until))
        return spend(self, index, since=since, until=until)

    monkeypatch.setattr(Patience, "spend", noted)
    cache.put_many(FILES)
    assert cache.get_many(KEYS[:3]) != [None] * 3
    with stopped(servers.pids[0]), stopped(servers.pids[1]), stopped(servers.pids[2]):
        for _ in range(50):
            assert cache.get_many(KEYS) == [None] * 40
    assert cache.counts.errors == 3
    assert len(waits) == 3
    assert sum(until - since >= LOCAL_TIMEOUT_S / 2 for since, until in waits) == 1  # then the others have had their time too


def test_a_silent_server_is_missed_alone_however_long_and_found_again(servers):
    later_s = 0.0
    cache = RedisByteCache(servers.shards, clock=lambda: time.monotonic() + later_s)
    cache.put_many(FILES)
    with stopped(servers.pids[0]):
        cache.get_many(KEYS)
        others = 40 - sum(value is None for value in cache.get_many(KEYS))
        waited_s = cache._patience.spent_s(0)
        for _day in range(5):
            later_s += 86_400
            assert 40 - sum(value is None for value in cache.get_many(KEYS)) == others > 0
            for thread in threading.enumerate():  # what asks it again waits beside the batches
                if thread.name == "redis-probe":
                    thread.join()
        assert cache._patience.spent_s(0) == waited_s
    assert cache.counts.errors == 1
    later_s += 61
    find_again(cache)
    cache.close()


def test_a_server_that_falls_silent_again_and_again_is_given_up_by_name_and_the_others_go_on(servers, caplog):
    later_s = 0.0
    cache = RedisByteCache(servers.shards, num_ranks=8, clock=lambda: time.monotonic() + later_s)
    cache.put_many(FILES)
    name = str(servers.shards.servers[0])
    while not caplog.records or "given up" not in caplog.records[-1].getMessage():
        later_s += FIRST_PAUSE_S
        find_again(cache)
        with stopped(servers.pids[0]):
            cache.get_many(KEYS)
    waited_s = cache._patience.spent_s(0)
    assert (
        0.99 * WAITING_S / 8 / 2 <= waited_s < 1.5
    )  # half of the share of one of 8 ranks, up to a wait that is too short to tell
    assert f"server {name} is given up, after {waited_s:.2g} s of waiting in vain" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
    found = cache.get_many(KEYS)
    assert 0 < found.count(None) < 40
    later_s += 86_400
    assert cache.get_many(KEYS) == found
    cache.close()


def read_all(cache: RedisByteCache) -> None:
    assert cache.get_many(KEYS) == list(FILES.values())


def test_forked_workers_open_connections_of_their_own_and_share_the_counts(cache, servers):
    cache.put_many(FILES)
    read_all(cache)
    workers = [multiprocessing.get_context("fork").Process(target=read_all, args=(cache,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    read_all(cache)
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0
    assert cache.counts == Counts(hits=200, bytes=5 * 800_000)


def test_the_counts_read_as_one_line():
    counts = Counts(hits=3000, misses=1000, refused=2, errors=1, bytes=12_340_000)
    assert counts.line() == "3,000 hits (75.0%), 1,000 misses, 2 refused, 1 errors, 12.3 MB from memory"
    assert "7 damaged" in Counts(damaged=7).line()
    less = Counts(hits=1000, refused=2)
    assert counts - less == Counts(hits=2000, misses=1000, errors=1, bytes=12_340_000)
    assert counts - less + less == counts
