"""The processes of a session, found in /proc, signalled and ended together. Elsewhere than on Linux none are found.

Run as a script it is the guard of one session: it ends what is left of it when its own owner is killed. The owner writes the
session's number and the start time of its leader on stdin, and a second line once it has seen to the end itself.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

GONE_S = 5.0
PROCESSES = Path("/proc")


def members(session: int) -> dict[int, int]:
    """The parent of each process that lives in the session, by its pid.

    The kernel gives the number of a session to no new process as long as the session has a member.
    """
    found = {}
    for pid in filter(str.isdecimal, os.listdir(PROCESSES) if PROCESSES.is_dir() else ()):
        state, parent, _, own = _fields(int(pid))[:4] or ("Z", "", "", "")
        if state != "Z" and own == str(session):
            found[int(pid)] = int(parent)
    return found


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; with the pid it names one process for ever. Empty if none runs."""
    fields = _fields(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def send(pid: int, number: int, *, session: int) -> None:
    """Signal a process if it is, at that moment, one of the session."""
    with contextlib.suppress(OSError):  # it has ended
        process = os.pidfd_open(pid)
        try:
            if _fields(pid)[3:4] == [str(session)]:
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def end(session: int) -> None:
    """Kill all of the session. They are gone when this returns, or after GONE_S."""
    deadline = time.monotonic() + GONE_S
    while (pids := members(session)) and time.monotonic() < deadline:
        for pid in pids:
            send(pid, signal.SIGKILL, session=session)
        time.sleep(0.01)


def _fields(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process; nothing of one that has ended."""
    try:
        return (PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _guard() -> None:
    order = sys.stdin.readline().split()
    if not order or sys.stdin.readline():
        return
    session, started = order
    if start_time(int(session)) in (started, ""):  # else the session is over, and its number another's
        end(int(session))


if __name__ == "__main__":
    _guard()
