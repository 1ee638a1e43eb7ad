"""Servers and folders whose guard was killed together with its owner: found by the next run of the same user, and ended."""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

from tinyexp.redis_cache.guard import FOLDER_PREFIX, LOCK, noted_pids, start_time

GONE_S = 2.0


def end_leftovers(root: str) -> list[Path]:
    """The folders that were removed. A folder whose guard lives, or that another user owns, is left alone."""
    return [folder for folder in sorted(Path(root).glob(f"{FOLDER_PREFIX}*")) if _end(folder)]


def _end(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return False
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # another run was faster
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a guard that lives holds it
        _kill_servers(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _kill_servers(folder: Path) -> None:
    """Kill by pid those that the guard noted, unless another program has got their pid since."""
    alive = {pid: started for pid, started in noted_pids(folder).items() if started == start_time(pid)}
    for pid in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while any(start_time(pid) == started for pid, started in alive.items()) and time.monotonic() < deadline:
        time.sleep(0.01)
