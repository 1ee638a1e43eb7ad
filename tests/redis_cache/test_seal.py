import os
import random

from tinyexp.redis_cache.seal import opened, sealed

SECRET, KEY, VALUE = os.urandom(32), b"tinyexp:1:a/b.JPEG", os.urandom(4000)


def test_a_value_comes_back_verbatim_under_its_own_key_and_secret_only():
    stored = sealed(SECRET, KEY, VALUE)
    assert opened(SECRET, KEY, stored) == VALUE
    assert opened(SECRET, b"tinyexp:1:a/c.JPEG", stored) is None
    assert opened(os.urandom(32), KEY, stored) is None


def test_of_ten_thousand_damaged_values_none_is_opened():
    random.seed(0)
    stored = sealed(SECRET, KEY, VALUE)
    for _ in range(10_000):
        damaged = bytearray(stored[: random.choice([len(stored), random.randrange(len(stored))])])
        if len(damaged) == len(stored):
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        assert opened(SECRET, KEY, bytes(damaged)) is None
    assert opened(SECRET, KEY, b"") is None
    assert opened(SECRET, KEY, stored + b"x") is None
