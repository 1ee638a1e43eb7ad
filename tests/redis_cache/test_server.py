import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions

from tests.helpers.redis_servers import client_of, needs_redis, own_servers, plain_server
from tests.launch.conftest import is_alive
from tinyexp.errors import MachineError
from tinyexp.redis_cache import server
from tinyexp.redis_cache.guard import FOLDER_PREFIX, noted_pids, start_time, write_pids
from tinyexp.redis_cache.leftovers import end_leftovers
from tinyexp.redis_cache.server import RedisServers
from tinyexp.redis_cache.shards import SHARDS_FILE, Shards

pytestmark = [pytest.mark.redis, needs_redis]

ROOT = Path(__file__).parents[2]


def assert_gone(pids: list[int], folder: Path, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while any(map(is_alive, pids)) or folder.exists():
        assert time.monotonic() < deadline, (pids, folder)
        time.sleep(0.05)


def test_a_server_obeys_the_cache_user_alone_and_only_in_what_a_cache_needs():
    with own_servers() as servers:
        [shard] = servers.shards.servers
        for user, password in ((None, None), (None, "guess"), ("cache", "guess"), ("default", shard.password)):
            stranger = replace(shard, username=user, password=password)
            with client_of(stranger) as client, pytest.raises(exceptions.AuthenticationError):
                client.get("tinyexp:1:a")
        with client_of(shard) as client:
            client.set("tinyexp:1:a", b"x")
            assert client.get("tinyexp:1:a") == b"x"
            for command in ("CONFIG GET *", "EVAL return(1) 0", "FLUSHALL", "REPLICAOF 127.0.0.1 1", "MODULE LIST", "SAVE",
                            "SHUTDOWN", "CLIENT LIST", "KEYS *", "ACL LIST", "GET other", "SET other x"):  # fmt: skip
                with pytest.raises(exceptions.NoPermissionError):
                    client.execute_command(*command.split())


def test_nothing_listens_on_a_network_nothing_is_written_and_the_folder_is_this_users_alone():
    with own_servers(2) as servers:
        assert stat.S_IMODE(servers.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((servers.folder / SHARDS_FILE).stat().st_mode) == 0o600
        listening = (
            subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout if os.path.exists("/usr/bin/ss") else ""
        )
        for pid in servers.pids:
            assert f"pid={pid}," not in listening
            inodes = set[str]()
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    inodes.add(os.readlink(link))
            tcp = [line.split()[9] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
            assert not {f"socket:[{inode}]" for inode in tcp} & inodes
        assert not list(servers.folder.glob("*.rdb")) + list(servers.folder.glob("*aof*"))


def test_the_password_is_in_no_argument_list_no_environment_no_printed_form_and_no_log():
    with own_servers() as servers:
        password = servers.shards.servers[0].password
        assert password
        assert len(password) == 64
        told = [f"{servers.shards} {servers.shards!r}"]
        told += [path.read_text() for path in servers.folder.glob("*.log")]
        for pid in (*servers.pids, os.getpid()):
            told += [Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
        assert not any(password in text or servers.shards.seal.hex() in text for text in told)


def test_memory_is_shared_out_and_a_full_server_refuses_instead_of_forgetting():
    with own_servers(2, max_memory_gb=0.02) as servers, client_of(servers.shards.servers[0]) as client:
        memory = client.info("memory")
        assert memory["maxmemory"] == 10_000_000
        assert memory["maxmemory_policy"] == "noeviction"
        with pytest.raises(exceptions.OutOfMemoryError):
            for index in range(30):
                client.set(f"tinyexp:1:{index}", bytes(1_000_000))
        assert client.get("tinyexp:1:0") == bytes(1_000_000)


def test_a_port_that_is_taken_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "root_folder", lambda: str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot be started: 127.0.0.1:{port}: Address already in use; set redis_cfg"):
            RedisServers([str(port)], max_memory_gb=0.1, host="127.0.0.1")
    assert list(tmp_path.iterdir()) == []


def test_stop_leaves_nothing_and_may_come_twice():
    with own_servers(2) as servers:
        assert all(map(is_alive, servers.pids))
        assert Shards.read(servers.folder) == servers.shards
        servers.stop()
        assert not servers.folder.exists()
        assert not any(map(is_alive, servers.pids))
        with pytest.raises(MachineError, match=r"shards\.json cannot be read"):
            Shards.read(servers.folder)


OWNER = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from tinyexp.redis_cache.server import RedisServers
servers = RedisServers(["0", "1"], max_memory_gb=0.1)
worker = os.fork()
if not worker:
    time.sleep(60)  # a loader worker, which holds the owner's end of every pipe a while longer
    os._exit(0)
print(servers.folder, worker, *servers.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_and_folder_go_with_their_owner_however_it_ends(number):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout
    folder, worker, *pids = owner.stdout.readline().split()
    assert len(pids) == 2
    try:
        owner.send_signal(number)
        owner.wait()
        owner.stdout.close()
        assert_gone([int(pid) for pid in pids], Path(folder))
        assert is_alive(int(worker))
    finally:
        os.kill(int(worker), signal.SIGKILL)


def guard_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_guard_takes_its_servers_along_and_the_next_run_removes_the_folder(monkeypatch):
    private = tempfile.mkdtemp(dir="/tmp")  # where no other run removes it; a short name, for the sockets
    monkeypatch.setattr(server, "root_folder", lambda: private)
    with own_servers() as servers:
        os.kill(guard_of(servers.pids[0]), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(map(is_alive, servers.pids)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert servers.folder.exists()
        with own_servers() as others:
            assert_gone(servers.pids, servers.folder, within_s=0.1)
            assert all(map(is_alive, others.pids))
    Path(private).rmdir()


def test_a_leftover_server_is_ended_by_its_pid_and_nobody_elses(tmp_path):
    folder = tmp_path / f"{FOLDER_PREFIX}dead"
    folder.mkdir()
    with plain_server() as leftover, plain_server() as stranger, own_servers() as living:
        pids = [leftover.process.pid, stranger.process.pid]
        (folder / "lock").touch()
        # as a guard may leave it that was killed while it wrote: half a line, and none
        (folder / "pids").write_text(f"{pids[0]} {start_time(pids[0])}\n{pids[1]} 12345\n\n{pids[1]} \nx y\n{pids[1]}")
        (tmp_path / f"{FOLDER_PREFIX}young").mkdir()  # no lock file yet: not a folder of ours
        assert end_leftovers(str(tmp_path)) == [folder]
        assert leftover.process.wait(5) == -signal.SIGKILL
        assert not folder.exists()
        assert stranger.process.poll() is None
        assert living.folder not in end_leftovers(str(living.folder.parent))
        assert all(map(is_alive, living.pids))


def test_servers_that_have_ended_are_not_noted(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    servers: list[Any] = [SimpleNamespace(process=SimpleNamespace(pid=pid)) for pid in (ended.pid, os.getpid())]
    write_pids(tmp_path, servers)
    assert noted_pids(tmp_path) == {os.getpid(): start_time(os.getpid())}
    assert [path.name for path in tmp_path.iterdir()] == ["pids"]
