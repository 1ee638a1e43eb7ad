import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.helpers.redis_servers import free_port, needs_redis, own_servers, plain_server
from tinyexp.errors import ConfigError, MachineError
from tinyexp.process import Axis, Environment
from tinyexp.redis_cache import service
from tinyexp.redis_cache.config import FOLDER, PASSWORD, RedisCfg
from tinyexp.redis_cache.service import own_address, ports_of_node, served_cache

pytestmark = [pytest.mark.redis, needs_redis]

ON = RedisCfg(redis_cache_enabled=True, redis_cache_max_memory=0.1, redis_cluster_ports=[7000, 7001])


def alone(text: str) -> list[str]:
    return [text]


class Ranks:
    """Several ranks as threads of this process, which exchange texts."""

    def __init__(self, environments: list[Environment]) -> None:
        self.environments = environments
        self.texts: list[str] = [""] * len(environments)
        self.barrier = threading.Barrier(len(environments), timeout=30)

    def run(self, function) -> list:
        results: list = [None] * len(self.environments)

        def work(rank: int) -> None:
            def exchange(text: str) -> list[str]:
                self.texts[rank] = text
                self.barrier.wait()
                found = list(self.texts)
                self.barrier.wait()
                return found

            try:
                results[rank] = function(self.environments[rank], exchange)
            except BaseException as error:
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(self.environments))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def ranks_on_nodes(*sizes: int) -> Ranks:
    world = sum(sizes)
    places = [(local, size) for size in sizes for local in range(size)]
    return Ranks([Environment(Axis(rank, world), Axis(*place), "127.0.0.1", 1) for rank, place in enumerate(places)])


def test_a_run_without_the_cache_starts_nothing():
    with served_cache(RedisCfg(), Environment(), alone) as service:
        assert service is None


def test_a_run_starts_its_servers_and_leaves_nothing():
    with served_cache(ON, Environment(), alone) as service:
        assert service
        folder = Path(service.cache.shards.servers[0].path).parent
        service.cache.put_many({"a": b"x"})
        assert service.cache.get_many(["a"]) == [b"x"]
        assert service.description.startswith("2 shards on each node, here redis-server ")
        assert service.description.endswith(f", 2 x 0.05 GB, at sockets in {folder}")
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="of the run"), served_cache(ON, Environment(), alone) as service:
        assert service
        folder = Path(service.cache.shards.servers[0].path).parent
        raise RuntimeError("an error of the run")
    assert not folder.exists()


def put_and_get(cfg: RedisCfg):
    def function(environment: Environment, exchange) -> tuple[tuple, list, str]:
        with served_cache(cfg, environment, exchange) as service:
            assert service
            service.cache.put_many({f"of rank {environment.world.rank}": b"x"})
            exchange("")
            found = service.cache.get_many([f"of rank {rank}" for rank in range(environment.world.size)])
            return service.cache.shards.servers, found, service.description

    return function


def test_the_ranks_of_a_node_share_servers_and_other_nodes_have_their_own():
    first, second, third = ranks_on_nodes(2, 1).run(put_and_get(ON))
    assert first[0] == second[0] != third[0]
    assert first[1] == second[1] == [b"x", b"x", None]
    assert third[1] == [None, None, b"x"]
    assert not any(Path(shard.path).parent.exists() for shard in (*first[0], *third[0]))


def test_one_cache_is_spread_over_the_nodes():
    ports = [free_port() for _ in range(3)]
    cfg = RedisCfg(True, redis_cache_max_memory=0.1, redis_cluster_ports=ports, redis_rendezvous_world_size=-1)
    results = ranks_on_nodes(1, 1).run(put_and_get(cfg))
    for servers, found, description in results:
        assert [(shard.host, shard.port) for shard in servers] == [("127.0.0.1", port) for port in (ports[0], ports[2], ports[1])]
        assert found == [b"x", b"x"]
        assert description == "3 shards spread over 2 nodes"
    assert ports_of_node([1, 2, 3], 4, 5) == []
    assert own_address("127.0.0.1", 1) == "127.0.0.1"


def test_a_cache_is_not_spread_over_public_addresses(monkeypatch):
    monkeypatch.setattr(service, "own_address", lambda *_: "5.6.7.8")
    cfg = RedisCfg(True, redis_cache_max_memory=0.1, redis_rendezvous_world_size=-1)
    errors = [error for error in ranks_on_nodes(1, 1).run(put_and_get(cfg)) if isinstance(error, ConfigError)]
    assert errors
    assert "redis_rendezvous_world_size=-1 on " in str(errors[0])
    assert "5.6.7.8 has the public address 5.6.7.8, to which passwords and images would travel in clear" in str(errors[0])
    assert str(errors[0]).endswith("or, with redis_cfg.redis_rendezvous_world_size=1, a cache on each node")


def test_spread_over_one_node_they_are_at_sockets():
    [(servers, found, _)] = ranks_on_nodes(1).run(put_and_get(RedisCfg(True, redis_rendezvous_world_size=-1)))
    assert all(shard.path for shard in servers)
    assert found == [b"x"]


# --- outside servers


def outside(server, **values) -> RedisCfg:
    return RedisCfg(True, redis_cluster_ports=[server.port], redis_rendezvous_world_size=2, **values)


def test_an_outside_server_is_used_and_left_running():
    with plain_server(on_port=True) as server:
        for result in ranks_on_nodes(2).run(put_and_get(outside(server))):
            assert result[1] == [b"x", b"x"]
        assert server.process.poll() is None


def test_runs_share_an_outside_server_by_its_password_alone(monkeypatch):
    with plain_server("--requirepass", "hunter2", on_port=True) as server:
        monkeypatch.setenv(PASSWORD, "hunter2")
        for want in (None, b"x"):
            with served_cache(outside(server), Environment(), alone) as service:
                assert service
                assert service.cache.get_many(["a"]) == [want]
                service.cache.put_many({"a": b"x"})
                assert "hunter2" not in service.description
    monkeypatch.delenv(PASSWORD)
    with plain_server(on_port=True) as server:
        for _run in range(2):  # anybody could have put it there
            with served_cache(outside(server), Environment(), alone) as service:
                assert service
                assert service.cache.get_many(["a"]) == [None]
                assert service.cache.counts.damaged == _run
                service.cache.put_many({"a": b"x"})


@pytest.mark.parametrize(
    ("settings", "password", "reason"),
    [
        (["--requirepass", "hunter2"], "guess", "refuses us with the password given"),
        (["--requirepass", "hunter2"], None, "refuses us without a password"),
        (["--user", "default", "on", "nopass", "resetkeys", "~other:*", "+@all"], None, "may not do what the cache needs"),
    ],
)
def test_a_server_that_does_not_let_us_in_stops_the_run_at_its_start(monkeypatch, settings, password, reason):
    if password:
        monkeypatch.setenv(PASSWORD, password)
    with plain_server(*settings, on_port=True) as server:
        with pytest.raises(MachineError) as stop, served_cache(outside(server), Environment(), alone):
            pass
        assert f"127.0.0.1:{server.port}: " in str(stop.value)
        assert reason in str(stop.value)
        assert stop.value.exit_status == 5
        assert not password or password not in str(stop.value)


@pytest.mark.parametrize("says", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_at_the_port_stops_the_run_at_its_start(says):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            link, _ = other.accept()
            link.recv(100)
            link.sendall(says or b"")
            link.recv(100)
            link.close()

        listener = threading.Thread(target=speak)
        listener.start()
        cfg = RedisCfg(True, redis_cluster_ports=[other.getsockname()[1]], redis_rendezvous_world_size=2)
        reason = "does not speak Redis" if says else "says nothing for 1 s; is it Redis"
        with pytest.raises(MachineError, match=reason), served_cache(cfg, Environment(), alone):
            pass
        listener.join()


def test_an_outside_server_that_is_not_there_stops_the_run_at_its_start():
    cfg = RedisCfg(True, redis_cluster_ports=[free_port()], redis_rendezvous_world_size=2)
    with pytest.raises(MachineError, match=r"cannot be reached.*start the server"), served_cache(cfg, Environment(), alone):
        pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH, which makes the certificate")
def test_a_certificate_of_an_authority_of_ones_own_is_trusted_where_it_is_named(tmp_path, monkeypatch):
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"]
    subprocess.run(
        [*command, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, stderr=subprocess.DEVNULL
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            for _ in range(2):
                link, _ = listener.accept()
                secured = context.wrap_socket(link, server_side=True, do_handshake_on_connect=False)
                with secured as inside, contextlib.suppress(OSError):
                    inside.do_handshake()
                    inside.recv(100)
                    inside.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    inside.recv(100)

        server = threading.Thread(target=greet)
        server.start()
        cfg = RedisCfg(True, redis_url=f"rediss://127.0.0.1:{listener.getsockname()[1]}")
        with (
            pytest.raises(MachineError, match=r"certificate is not trusted.*SSL_CERT_FILE"),
            served_cache(cfg, Environment(), alone),
        ):
            pass
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        with pytest.raises(MachineError, match="does not speak Redis"), served_cache(cfg, Environment(), alone):
            pass
        server.join()


# --- tinyexp-run-with-redis


def test_the_servers_of_the_command_are_used_and_left_alone(monkeypatch):
    with own_servers() as servers:
        monkeypatch.setenv(FOLDER, str(servers.folder))
        for want in (None, b"x"):
            with served_cache(ON, Environment(), alone) as service:
                assert service
                assert service.cache.get_many(["a"]) == [want]
                service.cache.put_many({"a": b"x"})
        os.chmod(servers.folder / "shards.json", 0o644)
        with pytest.raises(MachineError, match="open to others"), served_cache(ON, Environment(), alone):
            pass


def test_the_client_library_loads_with_the_first_connection():
    program = "import sys; from tinyexp.redis_cache.client import RedisByteCache; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
