import os
import subprocess
import sys

import pytest

from tinyexp.errors import DataError, MachineError, PeerFailed
from tinyexp.launch.worker import Failure, Outcome, is_peer_loss, limit_threads, pack, run_as_rank, unpack


def raise_error(error: BaseException) -> None:
    raise error


def failure_of(error: BaseException) -> Failure:
    failure = run_as_rank(lambda: raise_error(error), rank=1).failure
    assert failure
    return failure


def test_a_result_travels_with_its_rank():
    assert unpack(pack(run_as_rank(lambda: {"loss": 0.5}, rank=3))) == Outcome(3, result={"loss": 0.5})


def test_a_user_error_keeps_its_exit_status_and_needs_no_traceback():
    failure = failure_of(DataError("5.JPEG cannot be read"))
    assert failure.line(1, 2) == "rank 1 of 2: 5.JPEG cannot be read"
    assert (failure.exit_status, failure.traceback) == (3, "")


def test_an_unexpected_error_brings_the_traceback_of_the_rank_from_the_function_on():
    failure = failure_of(KeyError("weight"))
    assert failure.exit_status == 7
    assert "in raise_error" in failure.traceback
    assert "launch/worker.py" not in failure.traceback


def test_notes_of_an_error_are_part_of_its_message():
    error = ValueError("bad shape")
    error.add_note("in blocks.3.mlp")
    assert failure_of(error).message == "bad shape\nin blocks.3.mlp"


@pytest.mark.parametrize(("error", "status"), [(SystemExit(143), 143), (SystemExit(0), 7), (KeyboardInterrupt(), 130)])
def test_a_rank_that_leaves_by_itself_has_failed_too(error, status):
    failure = failure_of(error)
    assert (failure.exit_status, failure.traceback) == (status, "")


@pytest.mark.parametrize(
    "message",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40215",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection reset by peer [10.0.0.2]:1234",
        "Timed out waiting 60000ms for recv operation to complete",
        "Application timeout caused pair closure",
        "NCCL error: ... ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "wait timeout after 60000ms, keys: /default_pg/0//cpu//1/0",
    ],
)
def test_the_echo_of_a_lost_rank_is_recognised(message):
    assert is_peer_loss(RuntimeError(message))


def test_only_a_rank_that_did_not_come_is_a_timeout():
    assert failure_of(RuntimeError("Timed out waiting 60000ms for recv operation to complete")).is_timeout
    assert failure_of(RuntimeError("Application timeout caused pair closure")).is_timeout
    assert not failure_of(RuntimeError("Connection closed by peer")).is_timeout
    assert not failure_of(PeerFailed("rank 1 found a value that is not finite")).is_timeout


def test_an_error_raised_from_the_echo_of_a_lost_rank_is_one_too():
    with pytest.raises(MachineError) as caught:
        try:
            raise RuntimeError("Connection closed by peer")
        except RuntimeError as error:
            raise MachineError("the group could not be formed") from error
    assert is_peer_loss(caught.value)


def test_a_lost_data_server_is_a_cause_of_its_own():
    assert not is_peer_loss(ConnectionResetError(104, "Connection reset by peer"))


def test_a_result_that_cannot_be_pickled_is_a_failure_that_names_its_type():
    failure = unpack(pack(Outcome(0, result=lambda: None))).failure
    assert failure
    assert "its result, of type function, cannot be pickled" in failure.message


def test_the_thread_limit_reaches_torch_and_what_is_loaded_later(monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    try:
        limit_threads(1)
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
    finally:
        torch.set_num_threads(before)


def test_a_rank_leaves_with_its_status_and_its_last_words_and_without_its_children():
    code = (
        "import multiprocessing, time\n"
        "from tinyexp.launch.worker import leave\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(100,))\n"
        "child.start()\n"
        "print('last words', end='')\n"
        "leave(3)\n"
    )
    # the pipe ends only when the child has ended too
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "last words")


def test_lines_of_processes_that_share_a_stream_stay_whole(tmp_path):
    code = (
        "import sys\n"
        "from tinyexp.launch.worker import leave, write_whole_lines\n"
        "write_whole_lines()\n"
        "for _ in range(300):\n"
        "    print(sys.argv[1] * 20 + '\\n' + sys.argv[1] * 30)\n"
        "leave(0)\n"
    )
    with (tmp_path / "log").open("a") as log:  # appending, as two processes do whose stdout is redirected
        processes = [subprocess.Popen([sys.executable, "-c", code, letter], stdout=log) for letter in "ab"]
        assert [process.wait(30) for process in processes] == [0, 0]
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(["a" * 20, "a" * 30, "b" * 20, "b" * 30] * 300)
