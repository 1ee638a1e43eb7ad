"""Ray itself: a private one on this machine, for as long as a run lasts, or the cluster that RAY_ADDRESS names."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinyexp.errors import MachineError
from tinyexp.launch import ray_guard

FOLDER_ROOT = "/tmp"  # not TMPDIR: the paths of Ray's sockets below it must stay under 108 bytes
FOLDER_PREFIX = "tinyexp-ray-"
OBJECT_STORE_BYTES = 80_000_000  # nearly Ray's minimum: no data goes through it
CONNECT_S = 10.0
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # sends nothing home
    # on stdout; `report` says it better, on stderr
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|Raylet is terminated|has been marked dead",
}


def cluster_address() -> str | None:
    """The address of the existing cluster to join, None where a private Ray is to be started.

    Raises: MachineError for an address of the Ray Client, through which ranks could not reach this process.
    """
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise MachineError(
            f"RAY_ADDRESS={address} goes through the Ray Client; run the command on a node of the cluster with RAY_ADDRESS=auto"
        )
    return None if address == "local" else address


def is_connected() -> bool:
    """Whether this process is connected to a Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def private_ray(*, num_cpus: int, num_gpus: int, preload: Sequence[str] = ()) -> Iterator[None]:
    """A Ray on this machine that ends with the block, its processes and its folder included.

    num_cpus: logical ones; Ray starts as many processes in advance, and each of them imports the modules of `preload` while
    the rest of Ray is still starting.
    """
    # Ray reads the mode when it is imported; where that is past, it turns tokens on by itself, as no mode is set (Ray 2.60).
    # The token it reads once a process. Without one of ours it writes a world-readable ~/.ray/auth_token
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with (
        private_folder() as folder,
        _connection(
            "local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level=logging.ERROR,
            _temp_dir=str(folder / "r"),
            _system_config={"preload_python_modules": list(preload)},
        ),
    ):
        yield


@contextlib.contextmanager
def joined_cluster(address: str | None) -> Iterator[None]:
    """A connection to an existing cluster. A connection that this process has already is used, and left open."""
    _reach(address)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with contextlib.nullcontext() if is_connected() else _connection(address, logging_level=logging.WARNING):
        yield


def _reach(address: str | None) -> None:
    """Raise at once where nothing listens: Ray would try for a quarter of an hour."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, which Ray looks up on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise MachineError(
            f"nothing answers at RAY_ADDRESS={address} ({error}); unset it to run on this machine, or set the address that "
            "`ray start --head` printed"
        ) from error


@contextlib.contextmanager
def _connection(address: str | None, **settings: Any) -> Iterator[None]:
    import ray

    with _sigterm_handler_kept():
        try:
            ray.init(address, log_to_driver=False, **settings)
        except SystemExit:  # Ray's own handler of SIGTERM, with a status of its own
            ray.shutdown()
            raise SystemExit(128 + signal.SIGTERM) from None
        except BaseException as error:
            ray.shutdown()
            if isinstance(error, Exception):
                what = "started on this machine" if address == "local" else f"joined at RAY_ADDRESS={address}"
                raise MachineError(f"Ray could not be {what}: {type(error).__name__}: {error}") from error
            raise
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Put back the handler that `ray.init` replaces, which would outlive Ray."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder of mode 0700 that ends with the block, and with it every process that has a file there open.

    A process of its own sees to that, because it must also happen when this one is killed. Ray makes a folder inside, of mode
    0777.
    """
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=FOLDER_ROOT)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", ray_guard.__file__, folder],
        stdin=subprocess.PIPE,
        start_new_session=True,  # a signal to the whole group of this process must not reach it
    )
    try:
        yield Path(folder)
    finally:
        guard.communicate()
