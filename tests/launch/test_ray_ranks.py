import os
from types import SimpleNamespace
from typing import Any

import pytest

from tinyexp.launch import ray_ranks
from tinyexp.launch.ray_ranks import RayRanks, environments
from tinyexp.process import Axis, Environment


def test_local_ranks_count_the_ranks_of_each_node():
    found = environments(["a", "a", "a", "b"], "10.0.0.1", 4000, 0)
    assert [environment.world for environment in found] == [Axis(rank, 4) for rank in range(4)]
    assert [environment.local for environment in found] == [Axis(0, 3), Axis(1, 3), Axis(2, 3), Axis(0, 1)]


def test_every_rank_finds_the_same_hosted_store_and_owns_the_devices_that_ray_shows_it():
    (found,) = environments(["a"], "10.0.0.1", 4000, 2)
    assert found == Environment(Axis(), Axis(), "10.0.0.1", 4000, store_is_hosted=True, attempt=2, owns_devices=True)


def test_a_process_that_has_ended_exists_no_more_although_its_parent_has_yet_to_notice():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not ray_ranks._exists(pid)
    os.waitpid(pid, 0)
    assert not ray_ranks._exists(pid)
    assert ray_ranks._exists(os.getpid())


@pytest.mark.parametrize(
    ("explanation", "said"),
    [
        ("The actor 0af1 is unavailable: connection reset. The task may or may not have been executed on the actor.", ""),
        ("The actor died unexpectedly before finishing this task.", ""),
        ("Worker exit detail: Worker exits with code 3. Some common causes", "; Ray says: Worker exits with code 3."),
    ],
)
def test_ray_is_quoted_where_it_knows_more_than_that_a_rank_has_gone(explanation, said):
    placement: Any = SimpleNamespace(is_here=lambda rank: True, node=lambda rank: "")
    ranks = RayRanks(placement, output=placement)
    assert ranks._death(1, explanation).message == f"died without a report (killed, possibly out of memory){said}"
