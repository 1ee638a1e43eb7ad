"""What one rank does around the function it runs: take its place, run, report, leave."""

import faulthandler
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from tinyexp.errors import PeerFailed, TinyExpError, WorkerFailed
from tinyexp.launch.advice import advice
from tinyexp.streams import STDERR, STDOUT, Output, nowhere

THIS_FOLDER = os.path.dirname(__file__)

STACKS_SIGNAL = signal.SIGUSR1  # a rank that gets it prints where it is

# What torch, gloo, NCCL and the store say on a rank whose only trouble is that another rank fell silent or went away.
TIMEOUT_PHRASES = (
    "timed out",
    "wait timeout",
    "socket timeout",
    "collective operation timeout",
    "application timeout",  # gloo, of a collective in flight beside the one that timed out: that one closes their connection
)
PEER_LOSS_PHRASES = (
    *TIMEOUT_PHRASES,
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "connection was likely closed",
    "failed to recv",
    "recvvalue failed",
    "sendbytes failed",
    "remote process exit",
    "remote process has exited",
    "ncclremoteerror",
    "nccl communicator was aborted",
)

SELF_EXPLAINING = (TinyExpError, SystemExit, KeyboardInterrupt)


@dataclass(frozen=True)
class Failure:
    """Why a rank has no result, as plain text, so that it crosses every boundary between processes."""

    type_name: str  # class of the exception; "" where the process died and there was none
    message: str
    traceback: str = ""  # empty for an error whose message is enough
    exit_status: int = WorkerFailed.exit_status
    is_peer_loss: bool = False  # only the echo of another rank's failure
    is_timeout: bool = False  # such an echo, of a rank that did not come
    is_ours: bool = False  # its message is written for the user, whom the name of its class tells nothing

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The record of an exception."""
        return cls(
            type_name=type(error).__name__,
            message="\n".join(filter(None, [_message(error), *getattr(error, "__notes__", []), advice(error)])),
            traceback="" if isinstance(error, SELF_EXPLAINING) else "".join(traceback.format_exception(error)),
            exit_status=_exit_status(error),
            is_peer_loss=is_peer_loss(error),
            is_timeout=is_timeout(error),
            is_ours=isinstance(error, TinyExpError),
        )

    def line(self, rank: int, num_processes: int) -> str:
        """`rank 1 of 2: ValueError: message`, the first line that a reader should meet; without the class where it is ours."""
        between = ": " if self.is_ours else f": {self.type_name}: " if self.type_name else " "
        return f"rank {rank} of {num_processes}{between}{self.message}"


@dataclass(frozen=True)
class Outcome:
    """What one rank reports: its result, or its failure."""

    rank: int
    result: Any = None
    failure: Failure | None = None


def run_as_rank(fn: Callable[[], Any], rank: int) -> Outcome:
    """The outcome of `fn()` in this process, whatever it raises."""
    try:
        return Outcome(rank, result=fn())
    except BaseException as error:  # SystemExit too: nothing may leave a rank without a report
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(THIS_FOLDER):
            trace = trace.tb_next  # the launcher's own lines tell nobody anything
        return Outcome(rank, failure=Failure.of(error.with_traceback(trace)))


def pack(outcome: Outcome) -> bytes:
    """The outcome as bytes. A result that cannot be pickled becomes a failure.

    Plain pickle, not multiprocessing's own: that one would send tensors as shared memory, which this process takes with it
    when it leaves.
    """
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        message = f"the rank finished, but its result, of type {type(outcome.result).__name__}, cannot be pickled: {error}"
        return pickle.dumps(Outcome(outcome.rank, failure=Failure(type(error).__name__, message)))


def unpack(report: bytes) -> Outcome:
    """The outcome that `pack` wrote. Only for bytes of a rank that this run has started."""
    return pickle.loads(report)


def limit_threads(count: int) -> None:
    """Give this process `count` compute threads, and the libraries that it has yet to load as many."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:  # else its OpenMP reads the variable when it is imported
        sys.modules["torch"].set_num_threads(count)


def obey_signals() -> None:
    """Let SIGTERM and SIGINT end this rank, without a word, until its function handles them.

    For the main thread of a rank: it inherits its launcher's (or Ray's) handlers, which do other things. Ctrl-C at a terminal
    reaches the launcher alone, which passes it on: a rank of ours leads a process group of its own.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in all that it starts (Ray 2.60)


def print_stacks_when_asked() -> None:
    """Have this process print the Python stacks of all its threads on stderr when it gets STACKS_SIGNAL, and go on.

    It answers even where no Python code can run: inside a collective, or in a C library that holds the interpreter's lock.
    """
    faulthandler.register(STACKS_SIGNAL, file=2)


class WholeLines(Output):
    """An output that writes out where a piece of text ends with its line, never within: `print("a\\nb")` writes once."""

    def write(self, text: str) -> int:
        count = super().write(text)
        if text.endswith("\n"):
            self.flush()
        return count


def write_whole_lines() -> None:
    """Have stdout and stderr of this process write whole lines, so that ranks which share them do not mix theirs.

    One that is None leads nowhere: it was closed, and its descriptor may be a file or a socket of somebody by now.
    """
    _write_out()
    sys.stdout = nowhere() if sys.stdout is None else WholeLines(STDOUT)
    sys.stderr = nowhere() if sys.stderr is None else WholeLines(STDERR)


def settle() -> None:
    """End the loader workers that this process started and write out what it still buffers."""
    for child in multiprocessing.active_children():
        child.terminate()
    logging.shutdown()
    _write_out()


def _write_out() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or its reader has gone
            stream.flush()


def leave(status: int) -> NoReturn:
    """Leave this process with `status`, without the interpreter's own exit.

    With DTensor over gloo about one process in ten aborts during that exit, long after its work is done (torch 2.14.1:
    "terminate called without an active exception"). Handlers registered with `atexit` do not run.
    """
    settle()
    os._exit(status)


def is_peer_loss(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, only says that another rank failed, fell silent or went away."""
    return any(isinstance(cause, PeerFailed) or _says(cause, PEER_LOSS_PHRASES) for cause in _causes(error))


def is_timeout(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, says that another rank did not come."""
    return any(_says(cause, TIMEOUT_PHRASES) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _says(error: BaseException, phrases: Sequence[str]) -> bool:
    # torch.distributed raises RuntimeError and its subclasses; a lost data server raises OSError, a cause of its own
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in phrases)


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the rank left with status {error.code}"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)


def _exit_status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
        return error.code
    return error.exit_status if isinstance(error, TinyExpError) else WorkerFailed.exit_status
