"""Run a function on N processes of this machine."""

import logging
import multiprocessing
import os
import signal
import socket
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch

from tinyexp.errors import ConfigError
from tinyexp.launch.rendezvous import LOOPBACK, listen, serve_store, stay_on_loopback
from tinyexp.launch.report import death, results
from tinyexp.launch.restart import with_restarts
from tinyexp.launch.supervise import collect
from tinyexp.launch.worker import (
    Outcome,
    leave,
    limit_threads,
    obey_signals,
    pack,
    print_stacks_when_asked,
    run_as_rank,
    unpack,
    write_whole_lines,
)
from tinyexp.process import Axis, Environment, die_with_parent, threads_per_rank
from tinyexp.signals import StopRequest

LEAVE_S = 5.0  # from a rank's report to the end of its process

logger = logging.getLogger("tinyexp")


def run_local(fn: Callable[[], Any], num_processes: int, *, start_method: str = "fork", max_restarts: int = 0) -> list[Any]:
    """The results of `fn()` in rank order. One process without restarts: this one, as if nothing had been launched.

    The ranks are forked: they start with the modules that this process has imported, which saves each of them about 5 s of
    CPU for torch and timm. This is safe because a driver neither computes (no OpenMP threads to lose) nor initialises CUDA;
    where it has, the ranks are spawned. `start_method` may also be `spawn` or `forkserver`; then `fn` must be picklable.
    max_restarts: how often all ranks start again after a failure that may pass; they read `Environment.attempt`.

    Raises: WorkerFailed that names the first rank to fail and its error; KeyboardInterrupt or SystemExit(143) when stopped.
    Whatever happens, no rank is left running.
    """
    if num_processes < 1:
        raise ConfigError(f"cannot run on {num_processes} processes; 1 or more are needed")
    if num_processes == 1 and not max_restarts:
        return [fn()]
    context = multiprocessing.get_context(_safe(start_method))
    torch.set_num_threads(1)
    with StopRequest() as stop:

        def attempt(number: int) -> list[Outcome]:
            with RankProcesses(fn, num_processes, context, attempt=number) as ranks:
                outcomes = collect(ranks, num_processes, stop=stop)
            stop.raise_if_asked()
            return outcomes

        outcomes = with_restarts(attempt, num_processes, max_restarts=max_restarts)
    return results(outcomes, num_processes)


class RankProcesses:
    """The processes of a run, for a `with` block that none of them outlives."""

    def __init__(self, fn: Callable[[], Any], num_processes: int, context: BaseContext, *, attempt: int) -> None:
        self._fn = fn
        self._context = context
        self._attempt = attempt
        self._num_processes = num_processes
        self._processes: list[BaseProcess] = []
        self._reports: dict[int, Connection] = {}  # of the ranks that have yet to report
        self._succeeded: set[int] = set()
        self._store: object = None

    def __enter__(self) -> Self:
        listener = listen(LOOPBACK)
        try:
            for rank in range(self._num_processes):
                self._start(rank, listener)
            # after the forks: the store has threads of its own, which a fork would tear
            self._store = serve_store(listener)
        except BaseException:
            listener.close()
            self._kill()
            raise
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None and len(self._succeeded) == self._num_processes:
            self._await_exits()
        self._kill()

    def _start(self, rank: int, listener: socket.socket) -> None:
        environment = Environment(
            world=Axis(rank, self._num_processes),
            local=Axis(rank, self._num_processes),
            master_addr=LOOPBACK,
            master_port=listener.getsockname()[1],
            store_is_hosted=True,
            attempt=self._attempt,
        )
        reader, writer = self._context.Pipe(duplex=False)
        forked = self._context.get_start_method() == "fork"
        main = partial(_rank_main, self._fn, environment, writer, os.getpid() if forked else None, listener if forked else None)
        process = self._context.Process(target=main, name=f"rank {rank}")  # pyright: ignore[reportAttributeAccessIssue]
        with warnings.catch_warnings():  # Python 3.12 warns of any fork beside threads; see `run_local` for why ours is safe
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        writer.close()  # so that the rank's end is the only one, and its death ends the pipe
        self._processes.append(process)
        self._reports[rank] = reader

    def arrivals(self, timeout_s: float) -> list[Outcome]:
        """The outcomes that have come, after at most `timeout_s`; a dead rank is one."""
        wait([*self._reports.values(), *(self._processes[rank].sentinel for rank in self._reports)], timeout_s)
        arrived = [outcome for rank in list(self._reports) if (outcome := self._outcome(rank))]
        for outcome in arrived:
            self._reports.pop(outcome.rank).close()
            if outcome.failure is None:
                self._succeeded.add(outcome.rank)
        return arrived

    def _outcome(self, rank: int) -> Outcome | None:
        # asked before the pipe is read, so that a rank which reports and ends in between is not taken for dead. Pipe and
        # sentinel alone would not do: the loader workers of a killed rank hold both open
        is_alive = self._processes[rank].is_alive()
        with suppress(EOFError, OSError):
            if self._reports[rank].poll():
                return unpack(self._reports[rank].recv_bytes())
        return None if is_alive else Outcome(rank, failure=death(self._processes[rank].exitcode))

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to the process of a rank, not to its loader workers."""
        process = self._processes[rank]
        if process.is_alive() and process.pid:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(process.pid, number)

    def _await_exits(self) -> None:
        for rank, process in enumerate(self._processes):
            process.join(LEAVE_S)
            if process.exitcode:
                logger.warning("rank %d reported its result and then ended with status %d", rank, process.exitcode)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            assert process.pid, "every process in the list was started"
            with suppress(ProcessLookupError):  # nothing is left of its group
                os.killpg(process.pid, signal.SIGKILL)  # the loader workers of the rank
        for process in self._processes:
            process.join()
        for report in self._reports.values():
            report.close()
        self._store = None


def _rank_main(
    fn: Callable[[], Any], environment: Environment, report: Connection, parent_pid: int | None, listener: socket.socket | None
) -> None:
    os.setpgid(0, 0)  # the rank and its loader workers, to be killed as one; Ctrl-C reaches the driver alone
    obey_signals()
    print_stacks_when_asked()
    die_with_parent(parent_pid)
    if listener is not None:
        listener.close()  # the driver's, inherited by the fork
    os.environ.update(environment.variables())
    stay_on_loopback()
    limit_threads(threads_per_rank(environment.local.size))
    write_whole_lines()
    outcome = run_as_rank(fn, environment.world.rank)
    report.send_bytes(pack(outcome))
    leave(0)


def _safe(start_method: str) -> str:
    if start_method == "fork" and torch.cuda.is_initialized():
        logger.warning("this process has initialised CUDA, which a fork does not survive: the ranks are spawned, a slower start")
        return "spawn"
    return start_method
