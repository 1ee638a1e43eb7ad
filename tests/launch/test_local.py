import multiprocessing
import os
import signal
import time

import pytest

from tests.launch import jobs
from tests.launch.conftest import still_alive, wait_until_asleep
from tinyexp.errors import ConfigError, WorkerFailed
from tinyexp.launch import supervise
from tinyexp.launch.local import run_local

PRELOADED = ["torch.distributed.tensor.parallel", "torch._dynamo", "tests.launch.jobs"]  # sharding a module imports dynamo


def launch(job, **settings):
    """On two ranks of a server that has imported torch: this process has compute threads and must not be forked itself."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    return run_local(job, 2, start_method="forkserver", **settings)


def test_two_ranks_meet_and_their_results_come_in_rank_order(capfd):
    found = launch(jobs.describe)
    assert [rank["total"] for rank in found] == [3.0, 3.0]
    assert [(rank["rank"], rank["local_rank"], rank["local_size"]) for rank in found] == [(0, 0, 2), (1, 1, 2)]
    assert {rank["interface"] for rank in found} == {"lo"}
    assert all(rank["in_main_thread"] for rank in found)


def test_one_process_is_this_process():
    assert run_local(os.getpid, 1) == [os.getpid()]


def test_a_number_of_processes_below_1_is_refused():
    with pytest.raises(ConfigError, match="cannot run on 0 processes"):
        run_local(os.getpid, 0)


def test_the_rank_that_fails_is_named_with_its_error_and_exit_status():
    with pytest.raises(WorkerFailed, match=r"^rank 1 of 2: train/c0/5.JPEG cannot be read$") as caught:
        launch(jobs.fail_on_rank_1)
    assert caught.value.exit_status == 3


def test_the_cause_is_named_although_its_echo_came_first(monkeypatch):
    monkeypatch.setattr(supervise, "ECHO_S", 60.0)
    with pytest.raises(WorkerFailed, match=r"^rank 1 of 2: ValueError: the cause\n\nTraceback"):
        launch(jobs.fail_after_leaving_the_group)


def test_a_killed_rank_is_named_within_seconds_although_its_loader_workers_live(start, pids):
    begin = time.monotonic()
    command = start("fork", "kill_rank_1")
    _, errors = command.communicate(timeout=180)
    assert errors == "rank 1 of 2 was killed by SIGKILL (possibly out of memory)\n"
    assert command.returncode == 7
    assert time.monotonic() - begin < 30
    assert len(list(pids.iterdir())) == 5
    assert still_alive(pids) == []


def test_a_rank_that_leaves_without_a_report_is_named_with_its_status():
    with pytest.raises(WorkerFailed, match=r"^rank \d of 2 ended with status 3 before it reported a result$"):
        launch(jobs.leave_with_status_3)


def test_a_report_counts_whatever_becomes_of_the_process_afterwards(caplog):
    assert launch(jobs.die_while_leaving) == ["a result", "a result"]
    assert [record.getMessage() for record in caplog.records] == [
        f"rank {rank} reported its result and then ended with status 5" for rank in (0, 1)
    ]


def test_a_result_that_cannot_travel_is_an_error():
    with pytest.raises(WorkerFailed, match="its result, of type function, cannot be pickled"):
        launch(jobs.return_something_unpicklable)


def test_large_tensors_survive_the_rank_that_returned_them():
    zeros, ones = launch(jobs.return_a_large_tensor)
    assert (zeros.sum().item(), ones.sum().item()) == (0.0, 1e6)


def test_a_fork_shows_the_lines_and_the_folder_of_its_ranks(start):
    command = start("fork", "describe")
    output, errors = command.communicate(timeout=180)
    assert command.returncode == 0
    lines = output.splitlines()
    for rank in (0, 1):
        assert {f"line of rank {rank}", f"last line of rank {rank}", f"a child of rank {rank}"} <= set(lines)
        assert f"rank {rank} on stderr" in errors
    assert lines[-1].count("of the driver's folder") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_stopped_command_lets_its_ranks_save(start, pids, number, status):
    command = start("fork", "save_when_asked")
    wait_until_asleep(command)
    command.send_signal(number)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == status
    assert sorted(output.splitlines()) == [f"rank {rank} saved after {number.name}" for rank in (0, 1)]
    assert still_alive(pids) == []


def test_ranks_without_a_handler_end_quietly_on_ctrl_c(start, pids):
    command = start("fork", "sleep_long")
    wait_until_asleep(command)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert errors.count("Traceback") == 1  # of the command itself, which the test does not wrap as `run_command` does
    assert "sleep_long" not in errors
    assert still_alive(pids) == []


def test_a_killed_command_takes_its_ranks_along(start, pids):
    command = start("fork", "sleep_long")
    wait_until_asleep(command)
    command.kill()
    command.wait()
    assert len(list(pids.iterdir())) == 3
    assert still_alive(pids) == []


def test_twenty_tensor_parallel_runs_leave_with_status_0(caplog):
    """torch 2.14.1 aborts one such rank in ten where the interpreter exits by itself; `run_local` would log that."""
    losses = {loss for _ in range(20) for loss in launch(jobs.train_tensor_parallel)}
    assert len(losses) == 1
    assert caplog.records == []
