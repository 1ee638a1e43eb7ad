import os
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import still_alive
from tinyexp.errors import MachineError
from tinyexp.launch.external import run_external

TORCHRUN = (str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2", "-m")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_nothing_launched_is_alone():
    assert run_external(os.getpid) == [os.getpid()]


def test_contradictory_variables_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MachineError, match="MASTER_ADDR is not set"):
        run_external(os.getpid)


def test_ranks_of_torchrun_meet_and_end_with_status_0(start, pids):
    command = start("external", "describe", program=TORCHRUN)
    output, errors = command.communicate(timeout=180)
    assert command.returncode == 0, errors
    assert {"line of rank 0", "last line of rank 1", "a child of rank 1"} <= set(output.splitlines())
    assert still_alive(pids) == []


def test_under_torchrun_the_first_error_shown_is_that_of_the_rank_which_failed(start, pids):
    command = start("external", "fail_on_rank_1", program=TORCHRUN)
    _, errors = command.communicate(timeout=180)
    assert command.returncode == 1  # torchrun's own, whatever the rank's
    first = next(line for line in errors.splitlines() if "rror" in line)
    assert first == "error: rank 1 of 2: train/c0/5.JPEG cannot be read"
    assert "exitcode  : 3" in errors
    assert still_alive(pids) == []
