import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.conftest import ray_cluster, still_alive, wait_until_asleep
from tinyexp.errors import MachineError
from tinyexp.launch import ray_workers
from tinyexp.launch.ray_workers import RayCfg, check_resources, num_workers, run_ray

TWO_ON_CPU = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0})
TWELVE_CPUS_EACH = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0, "ray_num_cpus_per_worker": 12})


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_workers, "gpus_here", lambda: 0)


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_workers, "gpus_here", lambda: 4)


def ray_folders() -> set[Path]:
    return {path for root in ("/tmp", Path.home()) for name in ("tinyexp-ray-*", "ray", ".ray") for path in Path(root).glob(name)}


@pytest.fixture(autouse=True)
def nothing_of_ray_is_left(pids):
    before = ray_folders()
    yield
    assert still_alive(pids) == []
    assert ray_folders() <= before


def test_every_problem_is_told_with_its_key():
    cfg = RayCfg(ray_num_worker=0, ray_num_gpus_per_worker=1.5, ray_num_cpus_per_worker=0, ray_placement_strategy="TIGHT")
    problems = "\n".join(cfg.problems())
    for key in ("ray_num_worker=0", "ray_num_gpus_per_worker=1.5", "ray_num_cpus_per_worker=0", "ray_placement_strategy=TIGHT"):
        assert f"ray_cfg.{key}" in problems
    assert RayCfg().problems() == []


def test_more_gpus_than_there_are_are_refused_before_ray_starts(no_gpus):
    begin = time.monotonic()
    with pytest.raises(MachineError) as caught:
        run_ray(os.getpid, RayCfg(ray_num_worker=2))
    assert time.monotonic() - begin < 2
    assert str(caught.value) == (
        "ray_cfg asks for 2 workers x 1 GPUs = 2 GPUs, and this machine has 0: "
        "set ray_cfg.ray_num_gpus_per_worker=0.0 to run on the CPU"
    )


def test_the_number_of_workers_that_would_fit_is_offered(four_gpus):
    with pytest.raises(MachineError, match=r"this machine has 4: .* or ray_cfg.ray_num_worker=4 or less"):
        check_resources(RayCfg(ray_num_worker=8))
    check_resources(RayCfg(ray_num_worker=8, ray_num_gpus_per_worker=0.5))


def test_a_cluster_is_not_measured_by_this_machine(no_gpus, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_resources(RayCfg(ray_num_worker=8))
    assert num_workers(RayCfg(ray_num_worker=-1)) is None


def test_minus_1_fills_the_machine(four_gpus, monkeypatch):
    monkeypatch.setattr(ray_workers, "available_cores", lambda: 16)
    assert num_workers(RayCfg(ray_num_worker=-1, ray_num_cpus_per_worker=12)) == 4
    assert num_workers(RayCfg(ray_num_worker=-1, ray_num_gpus_per_worker=0.0, ray_num_cpus_per_worker=5)) == 3
    assert num_workers(RayCfg(ray_num_worker=-1, ray_num_gpus_per_worker=0.0, ray_num_cpus_per_worker=32)) == 1


@pytest.mark.ray
def test_ranks_see_the_drivers_folder_and_their_lines_come_out_as_written(start):
    command = start("ray", "describe", TWELVE_CPUS_EACH)
    output, errors = command.communicate(timeout=180)
    assert command.returncode == 0, errors
    *lines, first, second = output.splitlines()
    for rank, found in enumerate(map(json.loads, (first, second))):
        assert found["total"] == 3.0
        assert (found["rank"], found["local_rank"], found["local_size"], found["interface"]) == (rank, rank, 2, "lo")
        assert Path(found["folder"]).name == "a folder"
        assert found["data"] == "of the driver's folder"
        assert (found["carried"], found["visible_gpus"]) == ("carried", "")
        assert found["in_main_thread"]
        assert found["threads"] <= max(1, (os.cpu_count() or 1) // 2)  # not the 12 that Ray would set
    assert sorted(lines) == sorted(
        line for rank in (0, 1) for line in (f"line of rank {rank}", f"last line of rank {rank}", f"a child of rank {rank}")
    )
    assert {"rank 0 on stderr", "rank 1 on stderr"} <= set(errors.splitlines())
    if (os.cpu_count() or 1) < 24:
        assert errors.count("WARNING") == 1
        assert "2 workers x (12 CPUs) = 24 CPUs, 0 GPUs, and this machine has" in errors


@pytest.mark.ray
def test_a_killed_worker_is_named_although_its_loader_workers_live(start):
    command = start("ray", "kill_rank_1", TWO_ON_CPU)
    output, errors = command.communicate(timeout=180)
    assert (output, errors) == ("", "rank 1 of 2 died without a report (killed, possibly out of memory)\n")
    assert command.returncode == 7


@pytest.mark.ray
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_stopped_command_lets_its_workers_save(start, number, status):
    command = start("ray", "save_when_asked", TWO_ON_CPU)
    wait_until_asleep(command)
    command.send_signal(number)
    output, errors = command.communicate(timeout=180)
    assert command.returncode == status, errors
    assert sorted(output.splitlines()) == [f"rank {rank} saved after {number.name}" for rank in (0, 1)]


@pytest.mark.ray
def test_a_killed_command_takes_ray_along(start):
    command = start("ray", "sleep_long", TWO_ON_CPU)
    wait_until_asleep(command)
    before = ray_folders()
    command.kill()
    command.wait()
    deadline = time.monotonic() + 10
    while ray_folders() == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray_folders() < before


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    with ray_cluster(num_nodes=2) as variables:
        yield variables


@pytest.mark.ray
def test_ranks_of_two_nodes_meet(start, cluster):
    command = start("ray", "describe", TWO_ON_CPU, **cluster)
    output, errors = command.communicate(timeout=180)
    assert command.returncode == 0, errors
    for rank, found in enumerate(map(json.loads, output.splitlines()[-2:])):
        assert (found["total"], found["rank"], found["local_rank"], found["local_size"]) == (3.0, rank, 0, 1)
        assert found["interface"] in dict(socket.if_nameindex()).values()
        assert (found["data"], found["carried"]) == ("of the driver's folder", "carried")


@pytest.mark.ray
def test_a_cluster_says_what_it_cannot_place(start, cluster):
    too_much = {"ray_num_worker": 4, "ray_num_gpus_per_worker": 0.0, "ray_placement_timeout_s": 1.0}
    command = start("ray", "describe", json.dumps(too_much), **cluster)
    _, errors = command.communicate(timeout=180)
    assert command.returncode == MachineError.exit_status
    assert "asks for 4 workers x (1 CPUs) = 4 CPUs, 0 GPUs" in errors
    assert "The cluster has 2 CPUs, 0 GPUs on 2 nodes" in errors
    assert "ray_cfg.ray_placement_timeout_s=1" in errors


@pytest.mark.ray
@pytest.mark.parametrize("group", ["2", "0"], ids=["of two", "of all"])
def test_ranks_that_must_share_a_node_are_not_spread(start, cluster, group):
    settings = {"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0, "ray_placement_timeout_s": 1.0}
    command = start("ray", "describe", json.dumps(settings), group, **cluster)
    _, errors = command.communicate(timeout=180)
    assert command.returncode == MachineError.exit_status
    assert "2 workers x (1 CPUs) = 2 CPUs, 0 GPUs, 2 of them always on one node" in errors
    assert "on 2 nodes (the largest has 1 CPUs, 0 GPUs)" in errors
    assert "or set the key of the test" in errors


@pytest.mark.ray
def test_a_cluster_is_not_filled_with_ranks_that_must_share_a_node(start, cluster):
    settings = {"ray_num_worker": -1, "ray_num_gpus_per_worker": 0.0}
    command = start("ray", "describe", json.dumps(settings), "0", **cluster)
    _, errors = command.communicate(timeout=180)
    assert command.returncode == MachineError.exit_status
    assert "would fill 2 nodes with 2 workers" in errors
    assert "set ray_cfg.ray_num_worker=1 or less, or the key of the test" in errors


@pytest.mark.ray
def test_the_worker_that_fails_is_named_with_its_error_and_exit_status(start, cluster):
    command = start("ray", "fail_on_rank_1", TWO_ON_CPU, **cluster)
    output, errors = command.communicate(timeout=180)
    assert (output, errors) == ("", "rank 1 of 2: train/c0/5.JPEG cannot be read\n")
    assert command.returncode == 3
