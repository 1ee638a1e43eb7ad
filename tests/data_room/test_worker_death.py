import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.data_room.configs import fake_cfg
from tinyexp.data.batches import TrainLoader
from tinyexp.data.worker_death import death_of_worker
from tinyexp.errors import LoaderWorkerDied, MachineError
from tinyexp.launch.restart import may_pass
from tinyexp.launch.worker import Failure
from tinyexp.process import Axis


@pytest.fixture
def loader() -> TrainLoader:
    cfg = fake_cfg(num_workers=1, fake_data_len=6400)
    return cfg.build_train(Axis(), num_classes=4, seed=0, device_type="cpu")


def kill(loader: TrainLoader, number: int) -> int:
    [worker] = [each for each in multiprocessing.active_children() if each.pid in {w.pid for w in workers(loader)}]
    assert worker.pid
    os.kill(worker.pid, number)
    return worker.pid


def workers(loader: TrainLoader) -> list[Any]:
    return loader._iterator._workers  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  torch's


def while_a_batch_is_awaited(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def while_the_step_computes(batches: Iterator[Any]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        torch.ones(10).sum().item()


@pytest.mark.parametrize("elsewhere", [while_a_batch_is_awaited, while_the_step_computes])
def test_a_killed_worker_ends_in_one_message_wherever_its_rank_is(loader, elsewhere: Callable[[Iterator[Any]], None]):
    batches = iter(loader)
    next(batches)
    pid = kill(loader, signal.SIGKILL)
    with pytest.raises(MachineError) as stop:
        elsewhere(batches)
    # a rank that reads from the worker's socket just then meets its end before the signal
    assert re.match(
        rf"a loader worker (\(pid {pid}\)|is gone \((ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)) ",
        str(stop.value),
    )
    assert "dataloader_cfg.num_workers lower" in str(stop.value)
    failure = Failure.of(stop.value)
    assert (failure.traceback, may_pass(failure)) == ("", True)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            ["(pid 7) was killed by the signal Killed: most"],
        ),
        (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), ["(pid 7, 8) exited unexpectedly: most likely"]),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ... shared memory."),
            ["(pid 7) was killed by the signal Bus error: /dev/shm", "--shm-size"],
        ),
        (EOFError(), ["a loader worker is gone (EOFError"]),
        (ConnectionResetError(104, "Connection reset by peer"), ["a loader worker is gone (ConnectionResetError"]),
    ],
)
def test_what_torch_says_of_a_dead_worker_becomes_what_to_do(error, parts):
    death = death_of_worker(error)
    assert isinstance(death, LoaderWorkerDied)
    assert all(part in str(death) for part in parts)


def test_other_errors_stay_as_they_are():
    for error in (RuntimeError("CUDA out of memory"), OSError(5, "EIO"), ConnectionError("Caught ConnectionError in DataLoader")):
        assert death_of_worker(error) is None
