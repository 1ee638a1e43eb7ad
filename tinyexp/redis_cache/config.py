"""The keys of the Redis byte cache."""

import math
import os
from dataclasses import asdict, dataclass, field

from tinyexp.errors import ConfigError, MachineError
from tinyexp.redis_cache.addresses import address_problems
from tinyexp.redis_cache.server import find_server
from tinyexp.redis_cache.shards import Shard
from tinyexp.redis_cache.url import PASSWORD, RedisUrl

FOLDER = "TINYEXP_REDIS_FOLDER"  # the variable in which tinyexp-run-with-redis names the folder of its servers
LOCAL, SPREAD = 1, -1  # values of redis_rendezvous_world_size; larger ones are outside servers


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
        """What cannot work, one line each. Of a cache that is off only a bad URL, whose password a run's records would keep."""
        if not self.redis_cache_enabled:
            return self._url_problems()
        found = self._port_problems() + (self._outside_problems() if self.is_outside else [])
        found += self._contradictions() if self.redis_url else []
        if not 0 < self.redis_cache_max_memory < math.inf:
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
        if problems := self._outside_problems():
            raise ConfigError("\n  ".join(problems))
        password = os.environ.get(PASSWORD) or None
        if not self.redis_url:
            return tuple(Shard(host=self.redis_cluster_host, port=port, password=password) for port in self.redis_cluster_ports)
        return (Shard(**asdict(RedisUrl.parse(self.redis_url)), password=password),)

    def _contradictions(self) -> list[str]:
        """Keys that say that the cache is elsewhere than `redis_url` says: whoever set both meant one of them."""
        elsewhere, usual = ["redis_cluster_host", "redis_cluster_ports"], RedisCfg()
        found = [f"{name}={getattr(self, name)}" for name in elsewhere if getattr(self, name) != getattr(usual, name)]
        if self.redis_rendezvous_world_size == SPREAD:
            found.append(f"redis_rendezvous_world_size={SPREAD}")
        return [
            f"redis_cfg.{each} contradicts redis_cfg.redis_url, which names one outside server; leave one out" for each in found
        ]

    def _port_problems(self) -> list[str]:
        ports = self.redis_cluster_ports
        found = [f"redis_cfg.redis_cluster_ports: {port} is no port, use 1 to 65535" for port in ports if not 0 < port < 1 << 16]
        if not ports or len(set(ports)) < len(ports):
            found.append(f"redis_cfg.redis_cluster_ports={ports}: one or more different ports are needed, one shard each")
        return found

    def _outside_problems(self) -> list[str]:
        if not self.redis_url:
            return address_problems(self.redis_cluster_host, key="redis_cfg.redis_cluster_host")
        if problems := self._url_problems():
            return problems
        url = RedisUrl.parse(self.redis_url)
        return address_problems(url.host, key="redis_cfg.redis_url", in_clear=not url.tls) if url.host else []

    def _url_problems(self) -> list[str]:
        try:
            RedisUrl.parse(self.redis_url or "redis://")
        except ValueError as error:
            return [str(error)]
        return []
