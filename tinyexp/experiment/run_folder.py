"""The run folder belongs to one run at a time, can be written to, and loses nothing to the next run."""

import contextlib
import fcntl
import json
import os
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinyexp.errors import MachineError
from tinyexp.process import host_name

LOCK = ".lock"
FLOCK = "hhqqi0q"  # Linux's struct flock: kind, whence, first byte, number of bytes, pid
EARLIER = "earlier-{}"  # folders to which a new run moves what it finds


@contextlib.contextmanager
def owned(folder: Path, *, needed_bytes: int = 0) -> Iterator[None]:
    """This process owns the run folder while the block runs; it is made where it does not exist.

    The lock is the kernel's (fcntl), so that a killed owner leaves none behind, and is not inherited by forks.
    Raises: MachineError if another process owns it, with its pid and start; if it cannot be written; or if `needed_bytes` do
    not fit.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115, open as long as the block
    except OSError as error:
        raise MachineError(_unwritable(folder, error)) from None
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MachineError(
                f"the run folder {folder.absolute()} belongs to a run that is still going: {_owner(folder)}; "
                "set another exp_name or output_root, or end that run first"
            ) from None
        lock.truncate(0)
        lock.write(json.dumps({"pid": os.getpid(), "host": host_name(), "started": time.strftime("%Y-%m-%d %H:%M:%S %z")}))
        lock.flush()
        _probe(folder, needed_bytes)
        yield


def is_owned(folder: Path) -> bool:
    """Whether another process owns the run folder just now. It takes nothing, so that a run can begin meanwhile.

    Not for the owner, whose lock this look would release.
    """
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with open(folder / LOCK, "rb") as lock:
            kind, *_ = struct.unpack(FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    except OSError:
        return False  # no run has been here, or none could have locked the folder
    return kind != fcntl.F_UNLCK


def set_earlier_run_aside(folder: Path, names: Sequence[str]) -> Path | None:
    """Move what another run has left in the folder into a subfolder of its own; returns that, None where there is nothing.

    `names` may be patterns. The owner of the folder calls it.
    """
    found = sorted({path for name in names for path in folder.glob(name)})
    if not found:
        return None
    number = 1
    while (folder / EARLIER.format(number)).exists():
        number += 1
    aside = folder / EARLIER.format(number)
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)
    return aside


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        return f"pid {owner['pid']} on {owner['host']}, started {owner['started']}"
    except (OSError, ValueError, KeyError):
        return "its owner has yet to write its name"


def _probe(folder: Path, needed_bytes: int) -> None:
    """Do once what a checkpoint needs: create, sync, rename, delete."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        with open(probe, "xb") as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())
        os.replace(probe, probe.with_suffix(".renamed"))
        probe.with_suffix(".renamed").unlink()
    except OSError as error:
        raise MachineError(_unwritable(folder, error)) from None
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise MachineError(
            f"the run folder {folder.absolute()} has {free / 1e6:.0f} MB free, and two checkpoints of this run take "
            f"{needed_bytes / 1e6:.0f} MB; make room, or set another output_root"
        )


def _unwritable(folder: Path, error: OSError) -> str:
    return f"the run folder {folder.absolute()} cannot be written: {error.strerror}; set another output_root"
