"""Runs over two machines, made of network namespaces: equal to one process, each tensor-parallel group on one of them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.helpers.hosts import Host, missing, two_hosts

pytestmark = pytest.mark.netns

Hosts = tuple[Host, Host]
TORCHRUN = Path(sys.executable).parent / "torchrun"
TITLE = "mesh against one process"
NOTICED_S = 30.0
# the smallest run that has every part: mixing, drop-path, clipping, average of the weights
VERIFY = """mode=verify accelerator_cfg.device=cpu module_cfg.img_size=32 dataloader_cfg.input_size=32 module_cfg.patch_size=8
 module_cfg.num_classes=10 module_cfg.embed_dim=32 module_cfg.num_heads=2 module_cfg.depth=1""".split()  # noqa: SIM905

# single ranks, or tensor-parallel groups, each on another node
SPREAD = """ray_cfg.ray_num_gpus_per_worker=0.0 ray_cfg.ray_num_cpus_per_worker=1
 ray_cfg.ray_placement_strategy=STRICT_SPREAD""".split()  # noqa: SIM905
TWO_SPREAD = {"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0, "ray_placement_strategy": "STRICT_SPREAD"}


@pytest.fixture(autouse=True)
def hosts_are_possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


def start_torchrun(hosts: Hosts, folder: Path, ranks_per_node: int, *command: str) -> list[subprocess.Popen[str]]:
    started = []
    for index, host in enumerate(hosts):
        settings = ["--nnodes=2", f"--nproc-per-node={ranks_per_node}", f"--node-rank={index}"]
        address = [f"--master-addr={hosts[0].address}", "--master-port=29500"]
        started.append(host.start([str(TORCHRUN), *settings, *address, "-m", *command], folder=folder))
    return started


@contextmanager
def ray_cluster(folder: Path, script: str) -> Iterator[tuple[Hosts, list[subprocess.Popen[str]]]]:
    """The script as the command of `tinyexp-run-with-ray-cluster` on two hosts."""
    before = set(Path("/tmp").glob("tinyexp-ray-*"))
    with two_hosts() as hosts:
        started = []
        for rank, host in enumerate(hosts):
            part = ["--node-count=2", f"--node-rank={rank}", f"--head-addr={hosts[0].address}", "--", "sh", "-c", script]
            command = [sys.executable, "-m", "tinyexp.launch.ray_cluster_command", *part]
            started.append(host.start(command, folder=folder, HOME=str(folder)))
        yield hosts, started
    assert set(Path("/tmp").glob("tinyexp-ray-*")) <= before


def read_until(stream: IO[str], word: str, times: int) -> str:
    """What the stream has said until the word has come so many times."""
    seen = ""
    while seen.count(word) < times:
        line = stream.readline()
        assert line, f"it ended early: {seen}"
        seen += line
    return seen


@pytest.mark.parametrize(("ranks_per_node", "tp_size"), [(1, 1), (2, 2)], ids=["dp2_tp1", "dp2_tp2"])
def test_ranks_of_torchrun_on_two_machines_equal_one_process(hosts, tmp_path, ranks_per_node, tp_size):
    command = ("tinyexp.examples.vit_tp_exp", *VERIFY, f"accelerator_cfg.tp_size={tp_size}")
    started = start_torchrun(hosts, tmp_path, ranks_per_node, *command)
    (output, errors), _ = [process.communicate(timeout=180) for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    calls = 10 if tp_size > 1 else 1  # eight exchanges of the one block, and a bucket of gradients over dp and one over the world
    assert f"│ {calls} counted," in output


def test_a_node_that_falls_silent_ends_a_run_of_torchrun(hosts, tmp_path):
    started = start_torchrun(hosts, tmp_path, 1, "tests.launch.jobs", "external", "wait_for_rank_1")
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "asleep\n"
    time.sleep(4)  # for the watch to be set up
    hosts[1].cut()
    begin = time.monotonic()
    _, errors = started[0].communicate(timeout=60)
    assert time.monotonic() - begin < NOTICED_S
    assert "node node1 (10.77.0.2) is lost: the node, or its network, has not answered for 15 s\n" in errors
    assert started[0].returncode


def test_a_head_whose_name_is_loopback_to_itself_is_asked_for_its_address(hosts, tmp_path):
    part = ["--node-count=2", "--node-rank=0", "--head-addr=node0", "--", "true"]
    process = hosts[0].start([sys.executable, "-m", "tinyexp.launch.ray_cluster_command", *part], folder=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "--head-addr node0 is 127.0.0.1 on the machine itself, node 0 (node0)" in errors
    assert "10.77.0.1 (wire), 198.51.100.1 (spare)" in errors


@pytest.mark.ray
def test_runs_in_a_cluster_of_two_machines_equal_one_process_and_a_silent_node_ends_them(tmp_path):
    """One cluster for three runs: starting it is most of the cost."""
    verify = " ".join([sys.executable, "-m", "tinyexp.examples.vit_tp_exp", *VERIFY, *SPREAD])
    lost = f"{sys.executable} -m tests.launch.jobs ray wait_for_rank_1 '{json.dumps(TWO_SPREAD)}'"
    runs = [
        f"{verify} ray_cfg.ray_num_worker=2 accelerator_cfg.tp_size=1",
        f"{verify} ray_cfg.ray_num_worker=4 accelerator_cfg.tp_size=2",
        lost,
    ]
    with ray_cluster(tmp_path, " && ".join(runs)) as (hosts, (head, other)):
        assert head.stdout
        output = read_until(head.stdout, "asleep", 2)
        hosts[1].cut()
        _, errors = head.communicate(timeout=180)
        other.communicate(timeout=180)
    first, second = output.split(TITLE)[1:]
    assert "│ 1 counted," in first
    assert "│ 10 counted," in second
    assert (head.returncode, other.returncode) == (7, 5), errors
    lines = [line for line in errors.splitlines() if not line.startswith("[W")]
    assert lines == ["rank 1 of 2 on node node1 (10.77.0.2) is lost: the node, or its network, has not answered for 15 s"]
