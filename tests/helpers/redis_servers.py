"""Real redis-servers on private sockets or loopback ports: those of the package, and plain ones as a user would start them."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tinyexp.redis_cache.guard import answers
from tinyexp.redis_cache.server import RedisServers
from tinyexp.redis_cache.shards import Shard

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="no redis-server on PATH (apt install redis-server)"
)


@contextlib.contextmanager
def own_servers(num_shards: int = 1, *, max_memory_gb: float = 0.2) -> Iterator[RedisServers]:
    servers = RedisServers([str(index) for index in range(num_shards)], max_memory_gb=max_memory_gb)
    try:
        yield servers
    finally:
        servers.stop()


class PlainServer:
    """A redis-server that somebody else runs, with a socket in a short folder, or a port of 127.0.0.1."""

    def __init__(self, *settings: str, on_port: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="plain-redis-", dir="/tmp"))
        self.port = free_port() if on_port else 0
        self.path = "" if on_port else str(self.folder / "s")
        where = ["--port", str(self.port), "--bind", "127.0.0.1"] if on_port else ["--port", "0", "--unixsocket", self.path]
        command = ["redis-server", *where, "--save", "", "--dir", str(self.folder), *settings]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not answers(["127.0.0.1", self.port] if on_port else self.path):
            assert self.process.poll() is None and time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)

    def shard(self, **changes) -> Shard:
        return Shard(path=self.path, host="127.0.0.1" if self.port else "", port=self.port, **changes)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def plain_server(*settings: str, on_port: bool = False) -> Iterator[PlainServer]:
    server = PlainServer(*settings, on_port=on_port)
    try:
        yield server
    finally:
        server.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def client_of(shard: Shard) -> Iterator[Redis]:
    client = shard.connect()
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still while the block runs: it accepts connections, and says nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
