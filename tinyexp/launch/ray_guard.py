"""Ends what is left of a private Ray, its folder included, as soon as the driver closes its end of stdin or dies.

Run as a script with the folder as its argument. Of a driver that is killed Ray leaves two agents for a minute, and all its files.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

PATIENCE_S = 5.0


def users(folder: str) -> Iterator[int]:
    """The processes that have a file of the folder open: Ray renames its processes, but all of them write logs there."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if any(link.startswith(folder + "/") for link in open_files(pid)):
            yield int(pid)


def open_files(pid: str) -> Iterator[str]:
    """The paths of what a process has open; nothing of another user's."""
    with suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed since
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def clear(folder: str, *, driver: int) -> None:
    """Kill the users of the folder, other than the driver, until there are none, and remove it."""
    deadline = time.monotonic() + PATIENCE_S
    while (pids := [pid for pid in users(folder) if pid != driver]) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    driver_pid = os.getppid()
    sys.stdin.buffer.read()
    clear(sys.argv[1], driver=driver_pid)
