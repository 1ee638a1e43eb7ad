"""The keys of the Redis byte cache."""

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tinyexp.errors import ConfigError, MachineError
from tinyexp.redis_cache.server import find_server
from tinyexp.redis_cache.shards import Shard

PASSWORD = "TINYEXP_REDIS_PASSWORD"  # the variable for that of an outside server
FOLDER = "TINYEXP_REDIS_FOLDER"  # the variable in which tinyexp-run-with-redis names the folder of its servers
LOCAL, SPREAD = 1, -1  # values of redis_rendezvous_world_size; larger ones are outside servers
SCHEMES = ("redis", "rediss", "unix")


@dataclass
class RedisCfg:
    """A cache of the training files' bytes in Redis. Samples are the same with it, without it, and when it fails."""

    redis_cache_enabled: bool = False  # serve the training files from memory after their first read
    redis_cluster_host: str = "127.0.0.1"  # of outside servers; those of a run listen on private sockets or addresses of nodes
    redis_cluster_ports: list[int] = field(default_factory=lambda: [7000, 7001, 7002, 7003, 7004, 7005])  # one shard a port
    redis_cache_max_memory: float = 160.0  # GB over all shards of a node; lowered to half of its free memory
    redis_rendezvous_world_size: int = LOCAL  # 1: a Redis on each node; -1: one over all nodes; > 1: outside servers
    redis_url: str = ""  # an outside server, redis://, rediss:// (TLS) or unix://; its password: TINYEXP_REDIS_PASSWORD

    @property
    def is_outside(self) -> bool:
        """Whether the servers are somebody else's."""
        return bool(self.redis_url) or self.redis_rendezvous_world_size > 1

    def problems(self) -> list[str]:
        """What cannot work, one line each; [] where the cache is off."""
        if not self.redis_cache_enabled:
            return []
        found = self._port_problems() + self._url_problems()
        if self.redis_cache_max_memory <= 0:
            found.append(f"redis_cfg.redis_cache_max_memory={self.redis_cache_max_memory}: a number of GB above 0 is needed")
        if self.redis_rendezvous_world_size < SPREAD or not self.redis_rendezvous_world_size:
            found.append(
                f"redis_cfg.redis_rendezvous_world_size={self.redis_rendezvous_world_size}: allowed are 1, a Redis on each node; "
                "-1, one over all nodes; 2 or more, servers that run already at redis_cfg.redis_cluster_host"
            )
        if not self.is_outside:
            if self.redis_cluster_host not in ("127.0.0.1", "localhost"):
                found.append(
                    f"redis_cfg.redis_cluster_host={self.redis_cluster_host} is for outside servers; this run starts its own: "
                    "set redis_cfg.redis_rendezvous_world_size=2 to use the servers there"
                )
            try:
                find_server()
            except MachineError as error:
                found.append(f"redis_cfg.redis_cache_enabled=true: {error}")
        return found

    def outside_servers(self) -> tuple[Shard, ...]:
        """The outside servers, in the order by which keys are dealt out. Raises: ConfigError where they cannot be trusted."""
        password = os.environ.get(PASSWORD) or None
        if not self.redis_url:
            _require_private(self.redis_cluster_host)
            return tuple(Shard(host=self.redis_cluster_host, port=port, password=password) for port in self.redis_cluster_ports)
        parts = urlsplit(self.redis_url)
        username = unquote(parts.username) if parts.username else None
        if parts.scheme == "unix":
            return (Shard(path=unquote(parts.path), username=username, password=password),)
        host, port, db = parts.hostname or "127.0.0.1", parts.port or 6379, int(parts.path.strip("/") or 0)
        if parts.scheme == "redis":
            _require_private(host)
        return (Shard(host=host, port=port, username=username, password=password, tls=parts.scheme == "rediss", db=db),)

    def _port_problems(self) -> list[str]:
        ports = self.redis_cluster_ports
        found = [f"redis_cfg.redis_cluster_ports: {port} is no port, use 1 to 65535" for port in ports if not 0 < port < 1 << 16]
        if not ports or len(set(ports)) < len(ports):
            found.append(f"redis_cfg.redis_cluster_ports={ports}: one or more different ports are needed, one shard each")
        return found

    def _url_problems(self) -> list[str]:
        if not self.redis_url:
            return []
        parts = urlsplit(self.redis_url)
        if parts.password is not None:
            return [
                f"redis_cfg.redis_url={masked(self.redis_url)} holds a password, which `ps`, logs and checkpoints would show; "
                f"leave it out and put it into the environment variable {PASSWORD}"
            ]
        path = parts.path.strip("/")
        try:
            is_good = bool(path) if parts.scheme == "unix" else parts.port != 0 and (not path or path.isdecimal())
        except ValueError:  # of the port
            is_good = False
        if is_good and parts.scheme in SCHEMES:
            return []
        return [f"redis_cfg.redis_url={self.redis_url}: use redis://host:port, rediss://host:port for TLS, or unix:///path"]


def masked(url: str) -> str:
    """The URL with *** for its password."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url


def _require_private(host: str) -> None:
    """Raises: ConfigError for a server to which password and images would travel in the clear over public networks."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ConfigError(f"redis_cfg.redis_cluster_host={host} is not known here ({error.strerror}); correct it") from None
    public = [
        str(address) for address in sorted(map(str, addresses)) if not ipaddress.ip_address(address.partition("%")[0]).is_private
    ]
    if public:
        raise ConfigError(
            f"the Redis server {host} has the public address {public[0]}, to which passwords and images would travel in clear; "
            "use a private one, or TLS with redis_cfg.redis_url=rediss://..."
        )
