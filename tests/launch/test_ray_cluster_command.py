import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.conftest import ROOT
from tinyexp.errors import ConfigError
from tinyexp.launch.cluster_node import Address, Node
from tinyexp.launch.ray_cluster_command import parse
from tinyexp.launch.rendezvous import listen

CLUSTER = ["--node-count=2", "--node-rank=1"]


def test_a_machine_knows_its_part_and_the_command():
    node, command = parse([*CLUSTER, "--head-addr=gpu0:7000", "--timeout-s=5", "--", "python", "-m", "a", "--b", "c=1"])
    assert node == Node(1, 2, Address("gpu0", 7000), 5.0)
    assert command == ["python", "-m", "a", "--b", "c=1"]


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("gpu0", Address("gpu0", 6379), "gpu0:6379"),
        ("10.0.0.7:80", Address("10.0.0.7", 80), "10.0.0.7:80"),
        ("fd00::7", Address("fd00::7", 6379), "[fd00::7]:6379"),
        ("[fd00::7]:80", Address("fd00::7", 80), "[fd00::7]:80"),
    ],
)
def test_the_head_is_named_with_or_without_a_port(text, address, shown):
    node, _ = parse([*CLUSTER, f"--head-addr={text}", "--", "true"])
    assert (node.head, str(node.head)) == (address, shown)


def test_everything_that_cannot_work_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        parse(["--node-count=2", "--node-rank=2", "--head-addr=gpu0:high", "--timeout-s=0", "--", "true"])
    for part in ("--node-rank 2: with --node-count 2 it is 0 to 1", "--head-addr gpu0:high: HOST or HOST:PORT", "--timeout-s 0"):
        assert part in str(caught.value)


def test_a_command_that_the_first_machine_lacks_is_said_before_ray_starts():
    with pytest.raises(ConfigError, match="the command nosuch: this machine has no such program"):
        parse(["--node-count=2", "--node-rank=0", "--head-addr=gpu0", "--", "nosuch", "--flag"])


@pytest.fixture
def command(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command for a head at a free port of this machine."""
    with listen("127.0.0.1") as held:
        port = held.getsockname()[1]
    started = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "tinyexp.launch.ray_cluster_command", f"--head-addr=127.0.0.1:{port}", *arguments]
        pipe = subprocess.PIPE
        variables = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        started.append(subprocess.Popen(program, cwd=tmp_path, env=variables, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    folders = set(Path("/tmp").glob("tinyexp-ray-*"))
    yield begin
    for process in started:
        process.kill()
        process.communicate()
    assert set(Path("/tmp").glob("tinyexp-ray-*")) <= folders
    assert not list(tmp_path.glob(".tinyexp/*"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_head_that_is_not_there_is_told_after_the_timeout(command):
    process = command(*CLUSTER, "--timeout-s=1", "--", "true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert errors.startswith(f"error: node 1 ({socket.gethostname()}) has found no head at 127.0.0.1:")
    assert "for 1 s; start --node-rank 0" in errors


@pytest.mark.ray
def test_the_command_runs_in_the_cluster_and_its_status_is_that_of_the_whole(command):
    code = "import os, ray; ray.init(log_to_driver=False); print(len(ray.nodes()), os.environ['RAY_ADDRESS'][:9]); os._exit(3)"
    process = command("--node-count=1", "--node-rank=0", "--", sys.executable, "-c", code)
    output, errors = process.communicate(timeout=180)
    assert (output, process.returncode) == ("1 127.0.0.1\n", 3), errors


@pytest.mark.ray
def test_a_signal_reaches_the_command_and_ends_the_cluster(command):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('up', flush=True); time.sleep(100)"
    process = command("--node-count=1", "--node-rank=0", "--", sys.executable, "-c", code)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 9


@pytest.mark.ray
def test_missing_nodes_are_counted_and_those_that_are_there_named(command):
    process = command("--node-count=2", "--node-rank=0", "--timeout-s=1", "--", "true")
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 5
    assert "1 of 2 nodes are there after 1 s: " in errors
    assert "start the same command on the others" in errors
