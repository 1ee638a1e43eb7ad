"""A command that one of ours runs: it gets our signals, and nothing of it outlives us."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tinyexp import sessions
from tinyexp.errors import ConfigError
from tinyexp.process import die_with_parent
from tinyexp.signals import StopRequest

GRACE_S = 35.0  # for the command to save and leave, once asked to stop; a run gives its ranks 30
POLL_S = 0.1


def run_wrapped(
    command: Sequence[str], variables: Mapping[str, str], stop: StopRequest, watch: Callable[[], object] = int
) -> int:
    """The exit status of the command, once it and all that it has started in its session have ended.

    Signals are passed on, and then the session has GRACE_S to end. What a command that ends by itself leaves behind is killed,
    and also all of it where this process is killed. watch: called again and again; what it raises ends the command.

    Raises: ConfigError if the command cannot be started.
    """
    with contextlib.ExitStack() as stack:
        wrapped = Wrapped(command, variables, stack)
        passed_on, deadline = 0, math.inf
        while time.monotonic() < deadline and wrapped.lives(also_its_orphans=passed_on > 0):
            if stop.count > passed_on:
                passed_on, deadline = stop.count, min(deadline, time.monotonic() + GRACE_S)
                wrapped.begin_signal(stop.number)
            wrapped.signal_heads()
            watch()
            time.sleep(POLL_S)
    return wrapped.status


class Wrapped:
    """A command in a session of its own, so that Ctrl-C at a terminal reaches it once, through us; it ends with the stack."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], stack: contextlib.ExitStack) -> None:
        # a process of its own, because it must also act when this one is killed
        guard = [sys.executable, "-I", "-S", sessions.__file__]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        stack.callback(self._dismiss_guard)
        try:
            self._process = subprocess.Popen(command, env=variables, start_new_session=True, preexec_fn=die_with_parent)
        except OSError as error:
            raise ConfigError(f"the command {command[0]} cannot be started: {error.strerror}") from None
        stack.callback(self._end)
        self._number = 0  # the signal that is being passed on
        self._told: set[int] = set()
        self._tell_guard(f"{self._process.pid} {sessions.start_time(self._process.pid)}\n")

    def lives(self, *, also_its_orphans: bool) -> bool:
        """Whether the command itself, or, if asked so, anything in its session still runs."""
        return not self._has_ended or (also_its_orphans and bool(sessions.members(self._process.pid)))

    def begin_signal(self, number: int) -> None:
        """Pass on a signal from now on, anew if it has been passed on before."""
        self._number, self._told = number, set()
        if number == signal.SIGINT and not self._has_ended:
            # as a terminal does, to the whole group: a shell waits for its child, and expects it to have got the signal too
            self._told = set(sessions.members(self._process.pid))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def signal_heads(self) -> None:
        """Pass on the signal to each process whose parent is not of the session, once; nothing where there is no signal.

        That is the command, and then what it leaves behind when the signal ends it, as it does a shell. A run's own ranks, its
        loader workers and its Ray are left to the run, which must save before they go.
        """
        if not self._number:
            return
        found = sessions.members(self._process.pid)
        for pid in [pid for pid, parent in found.items() if parent not in found and pid not in self._told]:
            self._told.add(pid)
            sessions.send(pid, self._number, session=self._process.pid)

    @property
    def status(self) -> int:
        """As a shell has it. Once it has ended."""
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    @property
    def _has_ended(self) -> bool:
        if sys.platform != "linux":
            return self._process.poll() is not None
        # not reaped yet: so its number stays that of its session
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end(self) -> None:
        sessions.end(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._tell_guard("done\n")

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            self._guard.stdin.write(line.encode())
            self._guard.stdin.flush()

    def _dismiss_guard(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate()
