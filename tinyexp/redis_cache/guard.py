"""Starts redis-servers in a private folder, and ends them and the folder as soon as their owner says so or dies.

Run as a script: one line of JSON on stdin orders the servers, one line of JSON on stdout answers. A process of its own does
this, because it must also happen when the owner is killed. What is secret comes through the pipe, never as an argument.
Linux only.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FOLDER_PREFIX = "tinyexp-redis-"
LOCK, PIDS = "lock", "pids"  # files of the folder: held as long as the guard lives; `<pid> <start time>` of each server
START_S, STOP_S = 10.0, 2.0
CHECK_S = 0.5
FIRST_RESTART_S, LARGEST_RESTART_S = 1.0, 300.0


class Server:
    """One redis-server, started again, with growing pauses, where it ends by itself."""

    def __init__(self, order: dict[str, Any], binary: str, folder: Path) -> None:
        self.address: str | list[Any] = order["address"] or str(folder / f"{order['name']}.sock")
        self._settings = order["settings"].replace("{folder}", str(folder))
        self._binary = binary
        self._folder = folder
        self._log = folder / f"{order['name']}.log"
        self._pause_s = FIRST_RESTART_S
        self._ended_at = 0.0
        if not isinstance(self.address, str):
            require_free(*self.address)
        self.process = self._start()

    def wait_until_it_answers(self) -> None:
        """Raises: RuntimeError with the server's own words where it does not."""
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if answers(self.address):
                return
            time.sleep(0.005)
        ended = self.process.returncode
        why = f"ended with status {ended}" if ended is not None else f"did not answer within {START_S:g} s"
        raise RuntimeError(f"redis-server {why}: {' | '.join(self._log.read_text(errors='replace').split(chr(10))[-4:])}")

    def restart_if_ended(self, now: float) -> bool:
        """Whether it had ended and has been started again."""
        if self.process.poll() is None:
            return False
        self._ended_at = self._ended_at or now
        if now < self._ended_at + self._pause_s:
            return False
        self._ended_at, self._pause_s = 0.0, min(2 * self._pause_s, LARGEST_RESTART_S)
        self.process = self._start()
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                [self._binary, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={"PATH": os.environ.get("PATH", "")},
                preexec_fn=die_with_parent,
            )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended, and its log says why
            process.stdin.write(self._settings.encode())
        return process


def die_with_parent() -> None:
    """Have the kernel kill this process as soon as the one that started it ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def answers(address: str | list[Any]) -> bool:
    """Whether a Redis says something at a socket path, or at a [host, port]: the kernel accepts connections before it does."""
    is_path = isinstance(address, str)
    try:
        with socket.socket(socket.AF_UNIX) if is_path else socket.create_connection(tuple(address), timeout=1.0) as probe:
            if is_path:
                probe.settimeout(1.0)
                probe.connect(address)
            probe.sendall(b"PING\r\n")
            return bool(probe.recv(1))  # of a refusal too: we have given no password
    except OSError:
        return False


def require_free(host: str, port: int) -> None:
    """Raises: RuntimeError where something listens there already, which would be taken for the server."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise RuntimeError(
            f"{host}:{port}: {os.strerror(error.errno or 0)}; set redis_cfg.redis_cluster_ports to free ones"
        ) from error


@contextlib.contextmanager
def private_folder(root: str) -> Iterator[Path]:
    """A new folder of mode 0700, locked as long as the block lasts, removed with it."""
    draft = Path(tempfile.mkdtemp(prefix=f".{FOLDER_PREFIX}", dir=root))
    lock = os.open(draft / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = draft.with_name(draft.name[1:])  # only now, so that nobody finds the folder of a living guard unlocked
    draft.rename(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; with the pid it names one process for ever. Empty if none runs."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def serve(order: dict[str, Any], owner: int) -> None:
    """Run the servers until the owner writes to stdin, closes it, or is gone. `owner` is its pidfd."""
    with private_folder(order["root"]) as folder:
        servers: list[Server] = []
        try:
            servers += [Server(each, order["binary"], folder) for each in order["servers"]]
            write_pids(folder, servers)
            for server in servers:
                server.wait_until_it_answers()
            answer({"folder": str(folder), "pids": [server.process.pid for server in servers]})
            while not select.select([0, owner], [], [], CHECK_S)[0]:
                restarted = [server.restart_if_ended(time.monotonic()) for server in servers]
                if any(restarted):
                    write_pids(folder, servers)
        finally:
            end([server.process for server in servers])


def write_pids(folder: Path, servers: list[Server]) -> None:
    """Note the servers that live, in a file that is always whole."""
    started = {server.process.pid: start_time(server.process.pid) for server in servers}
    draft = folder / f"{PIDS}.new"
    draft.write_text("".join(f"{pid} {ticks}\n" for pid, ticks in started.items() if ticks))
    draft.replace(folder / PIDS)


def noted_pids(folder: Path) -> dict[int, str]:
    """The start times that `write_pids` has noted, by pid. What is no such line is left out."""
    try:
        lines = (folder / PIDS).read_text(errors="replace").splitlines()
    except FileNotFoundError:  # killed before it had written it
        return {}
    words = [line.split() for line in lines]
    return {int(pair[0]): pair[1] for pair in words if len(pair) == 2 and all(word.isdecimal() for word in pair)}


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop the processes: kindly, then, those that take longer than STOP_S, by force."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def leave_on_signal(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def main() -> None:
    order = json.loads(sys.stdin.readline())
    owner = os.pidfd_open(order["owner"])
    if os.fork():  # not a child of the owner's any more: Ray kills the children of a worker that ends
        os._exit(0)
    signal.signal(signal.SIGTERM, leave_on_signal)
    try:
        serve(order, owner)
    except Exception as error:
        answer({"error": str(error)})


if __name__ == "__main__":
    main()
