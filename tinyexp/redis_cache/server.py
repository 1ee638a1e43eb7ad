"""redis-servers of our own: what they may do, how much they may hold, how they start and how they end."""

import json
import logging
import os
import re
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyexp.errors import MachineError
from tinyexp.redis_cache import guard
from tinyexp.redis_cache.leftovers import end_leftovers
from tinyexp.redis_cache.memory import GB
from tinyexp.redis_cache.shards import Shard, Shards

logger = logging.getLogger("tinyexp")

OLDEST = (6, 2)  # has ACL users, and the fix of its last ten years of flaws in what we use
USER = "cache"
LARGEST_ROOT_BYTES = 60  # a socket's path has 107 bytes
ANSWER_S = 30.0
GONE_S = 30.0  # a guard needs 2 s at most, but for a disk that stalls

# Nothing of this reaches a disk or, with port 0, a network. noeviction: each epoch visits the images in a new order, and then
# a full cache that keeps what it has serves its share of them, while one that throws out the least recently used serves less:
# half of the set in memory gives 50 % against 15 %. ACL: no other command, and no other key. Two that would be natural here are
# left out: `+client|setinfo` keeps 7.0.15 from starting, and 6.2 does not know `latency-tracking`.
SETTINGS = """\
{listen}
protected-mode yes
save ""
appendonly no
maxmemory {max_bytes}
maxmemory-policy noeviction
maxclients 4096
proto-max-bulk-len 64mb
loglevel warning
daemonize no
dir "{{folder}}"
user default off resetpass -@all
user {user} on >{password} ~tinyexp:* resetchannels -@all +get +mget +set +ping +info
"""


@dataclass(frozen=True)
class Binary:
    """A redis-server to start."""

    path: str
    version: str


def find_server() -> Binary:
    """The redis-server of this machine. Raises: MachineError where there is none, or one that is too old."""
    if sys.platform != "linux":
        raise MachineError(f"redis-servers are started on Linux only, this is {sys.platform}; use an outside server")
    path = shutil.which("redis-server")
    if path is None:
        raise MachineError(
            "no redis-server on PATH; install one (Debian, Ubuntu: apt install redis-server), use an outside server "
            "(redis_cfg.redis_url, or redis_cfg.redis_rendezvous_world_size=2), or set redis_cfg.redis_cache_enabled=false"
        )
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bv=(\d+)\.(\d+)(\.\d+)?", said)
    if not found or (int(found[1]), int(found[2])) < OLDEST:
        version = found[0].removeprefix("v=") if found else f"unknown ({said.strip()[:80]!r})"
        raise MachineError(f"{path} is version {version}; {OLDEST[0]}.{OLDEST[1]} or newer is needed, for users with few rights")
    return Binary(path, found[0].removeprefix("v="))


class RedisServers:
    """The shards of one node, running; `stop` ends them, and so does the end of this process, however it comes."""

    def __init__(self, names: Sequence[str], *, max_memory_gb: float, host: str = "") -> None:
        """One shard a name: a socket in a private folder. With a host, the names are its ports.

        Raises: MachineError if they cannot be started.
        """
        binary = find_server()
        root = root_folder()
        end_leftovers(root)
        password = secrets.token_hex(32)
        self._max_bytes = max(1, int(max_memory_gb * GB) // len(names))
        order = {
            "owner": os.getpid(),
            "root": root,
            "binary": binary.path,
            "servers": [
                {
                    "name": name,
                    "address": [host, int(name)] if host else None,
                    "settings": SETTINGS.format(
                        listen=f"port {name}\nbind {host}"
                        if host
                        else f'port 0\nunixsocket "{{folder}}/{name}.sock"\nunixsocketperm 700',
                        max_bytes=self._max_bytes,
                        user=USER,
                        password=password,
                    ),
                }
                for name in names
            ],
        }
        self._guard, found = _order(order)
        self.version = binary.version
        self.pids: list[int] = found["pids"]
        self.folder = Path(found["folder"])
        self.shards = Shards(
            tuple(
                Shard(host=host, port=int(name), username=USER, password=password)
                if host
                else Shard(path=str(self.folder / f"{name}.sock"), username=USER, password=password)
                for name in names
            ),
            seal=secrets.token_bytes(32),
        )
        self.shards.write(self.folder)

    def __str__(self) -> str:
        each_gb, count = self._max_bytes / GB, len(self.shards.servers)
        return f"redis-server {self.version}, {count} x {each_gb:.2f} GB, at sockets in {self.folder}"

    def stop(self) -> None:
        """End the servers and remove their folder. They are gone when this returns."""
        assert self._guard.stdin and self._guard.stdout
        try:
            self._guard.stdin.write(b"\n")
            if select.select([self._guard.stdout], [], [], GONE_S)[0]:
                self._guard.stdout.read()
            else:
                logger.warning("the redis-servers in %s have not ended within %g s; their guard goes on", self.folder, GONE_S)
        except (BrokenPipeError, ValueError):  # the guard has gone, or this was called before
            pass
        self._guard.stdin.close()
        self._guard.stdout.close()


def _order(order: dict[str, object]) -> tuple[subprocess.Popen[bytes], dict]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        stderr=subprocess.DEVNULL,  # a pipe to Ray or to a reader of ours would hold both open
        start_new_session=True,  # a signal to the whole group of this process must not reach it
    )
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(order).encode() + b"\n")
    answered = select.select([process.stdout], [], [], ANSWER_S)[0]
    found = json.loads((process.stdout.readline() if answered else b"") or b'{"error": "no answer"}')
    process.wait()  # the guard itself goes on as nobody's child
    if "error" in found:
        process.stdin.close()
        process.stdout.close()
        raise MachineError(f"the shards of the Redis cache cannot be started: {found['error'].strip()}")
    return process, found


def root_folder() -> str:
    """The folder for folders of servers."""
    root = tempfile.gettempdir()
    return root if len(os.fsencode(root)) <= LARGEST_ROOT_BYTES else "/tmp"
