"""Runs that share a machine and start at the same moment."""

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.launch import jobs
from tests.launch.conftest import still_alive
from tests.launch.jobs import KILLS
from tests.launch.test_external import TORCHRUN
from tests.launch.test_local import PRELOADED
from tinyexp.launch.local import run_local

TWO_ON_CPU = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0})


@pytest.mark.ray
def test_two_runs_through_ray_and_two_of_their_own_never_meet(start, pids):
    commands = [start("ray", "sum_over_ranks", TWO_ON_CPU) for _ in range(2)] + [
        start("fork", "sum_over_ranks") for _ in range(2)
    ]
    for command in commands:
        output, errors = command.communicate(timeout=300)
        assert (command.returncode, output) == (0, "3.0\n3.0\n"), errors
    assert len(list(pids.iterdir())) == 12
    assert still_alive(pids) == []


def test_twenty_groups_of_one_rank_start_at_once_each_at_a_port_of_its_own():
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)

    def run(_: int) -> list[float]:
        return run_local(jobs.sum_over_ranks, 1, start_method="forkserver", max_restarts=1)

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(run, range(20))) == [[1.0]] * 20


def test_three_groups_that_torchrun_starts_again_at_once_meet(start, pids):
    """Left alone, torch 2.14.1 has ranks read addresses of the dead attempt."""
    program = (*TORCHRUN[:-1], "--max-restarts=2", "-m")
    commands = [start("external", "lose_rank_1_at_first", program=program, **{KILLS: "1"}) for _ in range(3)]
    for command in commands:
        output, errors = command.communicate(timeout=300)
        assert command.returncode == 0, errors
        for rank in (0, 1):
            assert f"rank {rank} in attempt 1 has 3.0" in output
    assert still_alive(pids) == []
