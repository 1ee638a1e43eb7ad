import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinyexp.errors import ConfigError
from tinyexp.sessions import start_time
from tinyexp.signals import StopRequest
from tinyexp.wrapped import run_wrapped

ROOT = Path(__file__).parents[1]
OWNER = """
import os, sys
from tinyexp.signals import StopRequest
from tinyexp.wrapped import run_wrapped
with StopRequest() as stop:
    sys.exit(run_wrapped(sys.argv[1:], os.environ, stop))
"""
# a run with a loader worker, which SIGTERM ends, and which has the handler of SIGINT from the run that forked it
RUN = """
import os, signal, subprocess, sys, time
asked = []
signal.signal(signal.SIGINT, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: asked.append(number))
print(os.getpid(), worker.pid, flush=True)
while not asked:
    time.sleep(0.02)
time.sleep(1.0)
lived = worker.poll() is None
worker.kill()
worker.wait()
print("saved", len(asked), lived, flush=True)
sys.exit(128 + asked[0])
"""


@pytest.fixture
def start(tmp_path):
    """Start a script that starts a run, under an owner of it. Gives the owner, and the pids of run and worker."""
    started: list[subprocess.Popen[str]] = []
    pids: list[int] = []

    def begin(script: str) -> tuple[subprocess.Popen[str], list[int]]:
        (tmp_path / "run.py").write_text(RUN)
        (tmp_path / "script.sh").write_text(script.format(run=f"{sys.executable} {tmp_path}/run.py"))
        program = [sys.executable, "-c", OWNER, "bash", str(tmp_path / "script.sh")]
        started.append(subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        pids.extend(map(int, started[-1].stdout.readline().split()))
        return started[-1], pids

    yield begin
    for pid in [process.pid for process in started] + pids:
        if start_time(pid):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.communicate()


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(start_time, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "number"),
    [("{run}\nexit $?\n", signal.SIGTERM), ("{run}\nexit $?\n", signal.SIGINT), ("set -m\n{run}\nexit $?\n", signal.SIGTERM)],
    ids=["SIGTERM", "SIGINT", "SIGTERM in a group of its own"],
)
def test_a_run_inside_a_script_gets_a_signal_once_saves_with_its_workers_and_is_waited_for(start, script, number):
    owner, pids = start(script)
    owner.send_signal(number)
    said, _ = owner.communicate(timeout=20)
    assert said == "saved 1 True\n"
    assert owner.returncode == 128 + number
    assert_gone(pids)


def test_a_run_inside_a_script_ends_with_its_owner_also_after_kill_9(start):
    owner, pids = start("{run}\n")
    owner.kill()
    owner.wait()
    assert_gone(pids)


def test_what_a_script_leaves_behind_ends_with_it(start):
    owner, pids = start("{run} &\nsleep 1\nexit 3\n")
    assert owner.wait(20) == 3
    assert_gone(pids)


def test_a_command_that_is_not_there_is_one_message_and_an_error_of_ours_ends_it():
    with StopRequest() as stop:
        with pytest.raises(ConfigError, match="no-such-command cannot be started: No such file"):
            run_wrapped(["no-such-command"], os.environ, stop)

        def fail() -> None:
            raise RuntimeError("lost")

        with pytest.raises(RuntimeError, match="lost"):
            run_wrapped(["sleep", "60"], os.environ, stop, watch=fail)
