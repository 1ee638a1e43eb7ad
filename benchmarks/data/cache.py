"""What the cache itself costs: a hit in microseconds, a key in bytes, and how it fills under repeated augmentation."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from tinyexp.data.samplers import RepeatedAugSampler
from tinyexp.process import Axis
from tinyexp.redis_cache.client import RedisByteCache
from tinyexp.redis_cache.seal import opened, sealed
from tinyexp.redis_cache.server import RedisServers

IMAGENET_IMAGES, IMAGENET_BYTES = 1_281_167, 110_000  # a file, on average
SHARDS = 6


@contextmanager
def running_cache(max_memory_gb: float = 2.0) -> Iterator[tuple[RedisByteCache, RedisServers]]:
    servers = RedisServers([str(index) for index in range(SHARDS)], max_memory_gb=max_memory_gb)
    cache = RedisByteCache(servers.shards)
    try:
        yield cache, servers
    finally:
        cache.close()
        servers.stop()


def used_bytes(servers: RedisServers) -> int:
    clients = [shard.connect() for shard in servers.shards.servers]
    used = sum(client.info("memory")["used_memory"] for client in clients)
    for client in clients:
        client.close()
    return used


def cost_of_a_hit(batch: int = 64, rounds: int = 30) -> dict[str, Any]:
    """Microseconds of one hit of 110 kB in a batch, of its checksum alone, and of reading the file from the page cache."""
    values = {f"set:{index}": os.urandom(IMAGENET_BYTES) for index in range(batch)}
    with running_cache() as (cache, _):
        cache.put_many(values)
        taken = []
        for _round in range(rounds):
            start = time.perf_counter()
            found = cache.get_many(list(values))
            taken.append((time.perf_counter() - start) / batch * 1e6)
            assert found == list(values.values())
    secret, value = os.urandom(32), os.urandom(IMAGENET_BYTES)
    stored, checks = sealed(secret, b"key", value), []
    for _round in range(200):
        start = time.perf_counter()
        opened(secret, b"key", stored)
        checks.append((time.perf_counter() - start) * 1e6)
    return {
        "batch": batch,
        "value_bytes": IMAGENET_BYTES,
        "hit_us": median(taken),
        "hit_us_fastest": min(taken),
        "of_which_checksum_us": median(checks),
    }


def memory_of_keys(num_keys: int = 100_000) -> dict[str, Any]:
    """Bytes that a key costs beside its value, measured with small values; and what file-sized values cost beside themselves."""

    def key(index: int) -> str:
        return f"0123456789abcdef:n01440764/n01440764_{index:06}.JPEG:109527:1700000000000000000"

    with running_cache() as (cache, servers):
        before = used_bytes(servers)
        for start in range(0, num_keys, 1000):
            cache.put_many({key(index): bytes(100) for index in range(start, start + 1000)})
        overhead = (used_bytes(servers) - before) / num_keys - 100
        assert cache.get_many([key(num_keys - 1)]) != [None]
    with running_cache() as (cache, servers):
        before, count = used_bytes(servers), 1000
        sizes = [20_000 + 180 * index for index in range(count)]  # 20 kB to 200 kB, 110 kB on average
        for start in range(0, count, 50):
            cache.put_many({key(index): os.urandom(sizes[index]) for index in range(start, start + 50)})
        large = (used_bytes(servers) - before) / count
    return {
        "measured_keys": num_keys,
        "bytes_a_key_beside_its_value": overhead,
        "extrapolated_MB_for_a_million_keys": overhead,  # bytes x 10^6 = MB
        "bytes_a_file_of_110_kB": large,
        "share_over_the_file": large / (sum(sizes) / count) - 1,
        "extrapolated_GB_for_imagenet": large * IMAGENET_IMAGES / 1e9,
    }


def fill_curve(num_images: int = 30_000, replicas: int = 8, epochs: int = 6) -> list[dict[str, float]]:
    """The share of the set in the cache after each epoch of repeated augmentation, beside 1 - (2/3)^epochs, and its hit rate."""
    rows = []
    with running_cache() as (cache, _):
        for epoch in range(epochs):
            before = cache.counts
            for rank in range(replicas):
                sampler = RepeatedAugSampler(num_images, Axis(rank, replicas))
                sampler.set_epoch(epoch)
                indices = list(sampler)
                for start in range(0, len(indices), 1000):
                    keys = list(dict.fromkeys(f"set:{index}" for index in indices[start : start + 1000]))
                    found = cache.get_many(keys)
                    cache.put_many({key: bytes(10) for key, value in zip(keys, found, strict=True) if value is None})
            counts = cache.counts - before
            held = sum(value is not None for value in cache.get_many([f"set:{index}" for index in range(num_images)]))
            rows.append(
                {
                    "epochs": epoch + 1,
                    "held": held / num_images,
                    "predicted": 1 - (2 / 3) ** (epoch + 1),
                    "hit_rate": counts.hits / (counts.hits + counts.misses),
                }
            )
    return rows
