import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tinyexp.data.samplers import ExactSampler, RepeatedAugSampler
from tinyexp.process import Axis

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden/ra_sampler.json").read_text())["cases"]


def sampler_of(case: dict) -> RepeatedAugSampler:
    replica = Axis(case["rank"], case["num_replicas"])
    sampler = RepeatedAugSampler(case["len_dataset"], replica, case["num_repeats"], shuffle=case["shuffle"])
    sampler.set_epoch(case["epoch"])
    return sampler


def test_repeated_augmentation_selects_the_official_indices_in_every_golden_row():
    rows = [case for case in GOLDEN if case["len_dataset"] >= 256]
    assert len(rows) == 111
    for case in rows:
        indices = list(sampler := sampler_of(case))
        assert len(indices) == len(sampler) == case["len_sampler"], case
        assert indices[:64] == case["first64"], case
        assert indices[-8:] == case["last8"], case
        assert hashlib.sha256(np.array(indices, dtype="<i8").tobytes()).hexdigest() == case["sha256_le_int64"], case


def test_below_256_images_where_the_official_rule_keeps_none_each_replica_keeps_its_share():
    rows = [case for case in GOLDEN if case["len_dataset"] < 256]
    assert rows
    for case in rows:
        assert case["len_sampler"] == 0
        assert len(list(sampler_of(case))) == 255 // case["num_replicas"]


def test_replicas_together_show_each_image_of_a_small_set_three_times_in_a_row():
    replicas = [list(RepeatedAugSampler(64, Axis(rank, 2))) for rank in range(2)]
    together = [index for pair in zip(*replicas, strict=True) for index in pair]
    assert len(together) == 64
    assert all(len(set(together[start : start + 3])) == 1 for start in range(0, 63, 3))


def test_another_epoch_has_another_order_and_the_same_epoch_the_same():
    sampler = RepeatedAugSampler(300, Axis())
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize("length", [1, 2, 11, 12])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_exact_sampler_gives_every_image_once_over_the_replicas(length, size):
    samplers = [ExactSampler(length, Axis(rank, size)) for rank in range(size)]
    assert sorted(index for sampler in samplers for index in sampler) == list(range(length))
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]


@pytest.mark.parametrize(
    ("length", "size", "batch_size", "want"),
    [
        (11, 1, 4, [4, 4, 3]),
        (11, 2, 1, [1, 1, 1, 1, 1, 1]),
        (11, 2, 3, [3, 3]),
        (11, 2, 5, [5, 1]),  # the second replica has no image in the last step
        (11, 2, 16, [6]),
        (1, 2, 8, [1]),  # the second replica has no image at all
    ],
)
def test_all_replicas_plan_the_same_steps_of_the_size_that_the_first_one_needs(length, size, batch_size, want):
    for rank in range(size):
        sampler = ExactSampler(length, Axis(rank, size))
        steps = range(sampler.num_batches(batch_size))
        assert [sampler.padded_batch_size(step, batch_size) for step in steps] == want
        assert sum(want) == sampler.rows_in_largest_replica >= len(sampler)
