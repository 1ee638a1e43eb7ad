"""Commands that launch ranks, and a look at what they leave behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.jobs import PIDS_FOLDER

ROOT = Path(__file__).parents[2]
GONE_S = 10.0


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The folder in which the processes of a command leave their pids."""
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, pids: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python -m tests.launch.jobs ...` in a folder with a space in its name."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "data.txt").write_text("of the driver's folder")
    started = []

    def begin(*arguments: str, program: tuple[str, ...] = (sys.executable, "-m"), **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TINYEXP_TEST": "carried", PIDS_FOLDER: str(pids)} | variables
        environment.pop("OMP_NUM_THREADS", None)
        command = [*program, "tests.launch.jobs", *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


CLUSTER = """
import os, shutil, sys, tempfile
folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(dir="/tmp")
from ray.cluster_utils import Cluster
node = dict(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=node)
for _ in range(1, int(sys.argv[1])):
    cluster.add_node(**node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
shutil.rmtree(folder)
"""


@contextmanager
def ray_cluster(*, num_nodes: int) -> Iterator[dict[str, str]]:
    """The variables with which to join a cluster of nodes with one CPU each. It is gone after the block."""
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CLUSTER, str(num_nodes)]
    with subprocess.Popen(command, env=os.environ | variables, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield variables | {"RAY_ADDRESS": address}
        process.communicate(timeout=180)


def still_alive(pids: Path) -> list[int]:
    """The processes that noted their pid and are there GONE_S later. A pid that another program has taken does not count."""
    deadline = time.monotonic() + GONE_S
    while (left := [int(path.name) for path in pids.iterdir() if is_alive(int(path.name))]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_asleep(process: subprocess.Popen[str]) -> None:
    """Until both ranks have printed that they sleep."""
    assert process.stdout
    seen = ""
    while seen.count("asleep") < 2:
        line = process.stdout.readline()
        assert line, f"the command ended early: {process.communicate()[1]}"
        seen += line
