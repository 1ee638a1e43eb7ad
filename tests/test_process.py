import os
import random
import signal
import subprocess
import sys

import numpy
import pytest
import torch

from tinyexp.errors import MachineError
from tinyexp.process import Axis, Environment, RandomStreams, preserve_random_state, seed_everything, threads_per_rank

BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_process_that_nobody_launched_is_alone():
    assert Environment.read({}) == Environment(world=Axis(0, 1))


def test_four_variables_set_by_hand_are_enough():
    environment = Environment.read(BY_HAND)
    assert environment.world == Axis(1, 2)
    assert (environment.master_addr, environment.master_port) == ("10.0.0.1", 29500)
    assert not environment.store_is_hosted


def test_an_environment_is_rebuilt_from_its_variables():
    environment = Environment(Axis(3, 4), Axis(1, 2), "10.0.0.1", 4000, store_is_hosted=True, attempt=2, owns_devices=True)
    assert Environment.read(environment.variables()) == environment


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"MASTER_ADDR": ""}, ["MASTER_ADDR is not set"]),
        ({"MASTER_PORT": ""}, ["MASTER_PORT is not set"]),
        ({"RANK": "2"}, ["RANK=2 is not below WORLD_SIZE=2"]),
        ({"RANK": "first"}, ["RANK is 'first'; a whole number >= 0 is needed"]),
        ({"WORLD_SIZE": ""}, ["WORLD_SIZE is not set"]),
        ({"RANK": ""}, ["RANK is not set"]),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, ["LOCAL_RANK=1 is not below LOCAL_WORLD_SIZE=1"]),
        ({"MASTER_PORT": "70000"}, ["MASTER_PORT=70000 is no port; 1 to 65535 are"]),
        ({"MASTER_ADDR": "", "MASTER_PORT": "x"}, ["MASTER_ADDR is not set", "MASTER_PORT is 'x'"]),
    ],
)
def test_contradictory_variables_are_all_named(change, parts):
    with pytest.raises(MachineError) as caught:
        Environment.read(BY_HAND | change)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("world", "local", "size", "holds"),
    [
        (Axis(3, 4), Axis(1, 2), 2, True),
        (Axis(3, 4), Axis(1, 2), 4, False),
        (Axis(1, 4), Axis(0, 1), 2, False),
        (Axis(3, 4), Axis(2, 3), 2, True),  # nodes of one and three ranks
        (Axis(1, 4), Axis(0, 3), 2, False),
        (Axis(1, 2), Axis(1, 2), 2, True),
        (Axis(1, 2), Axis(0, 1), 1, True),
    ],
)
def test_a_node_knows_whether_a_group_of_consecutive_ranks_is_all_its_own(world, local, size, holds):
    assert Environment(world, local).holds_group(size) is holds
    assert Environment(world, local).spans_nodes is (local.size < world.size)


def test_ranks_share_the_cores_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_rank(2, cores=2) == 1
    assert threads_per_rank(4, cores=2) == 1
    assert threads_per_rank(2, cores=12) == 6
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_rank(2, cores=2) == 3


def draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), numpy.random.rand(), random.random()


def test_one_seed_fixes_all_three_generators():
    seed_everything(5)
    first = draws()
    seed_everything(5)
    assert draws() == first
    seed_everything(6)
    assert all(one != other for one, other in zip(draws(), first, strict=True))


def test_a_preserved_block_leaves_the_generators_as_they_were():
    seed_everything(5)
    expected = draws()
    seed_everything(5)
    with preserve_random_state():
        draws()
    assert draws() == expected


def test_an_axis_holds_its_rank():
    with pytest.raises(AssertionError):
        Axis(2, 2)


def test_several_streams_in_one_process_are_those_of_several_processes():
    expected = []
    for seed in (5, 6):
        seed_everything(seed)
        expected.append([draws(), draws()])
    streams, found = RandomStreams([5, 6]), ([], [])
    for _ in range(2):
        for replica in (0, 1):
            with streams.stream(replica):
                found[replica].append(draws())
    assert list(found) == expected


def test_a_process_tied_to_its_parent_is_killed_with_it():
    child = "import time; from tinyexp.process import die_with_parent; die_with_parent(); print(flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == b""  # the pipe ends with the child, its last writer


def test_a_process_whose_parent_has_gone_already_leaves_at_once():
    code = "from tinyexp.process import die_with_parent; die_with_parent(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
