"""The cache of a run: servers that its first rank on each node starts and ends, or somebody else's."""

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyexp.errors import ConfigError
from tinyexp.process import Environment, host_name
from tinyexp.redis_cache.addresses import address_problems
from tinyexp.redis_cache.client import RedisByteCache
from tinyexp.redis_cache.config import FOLDER, LOCAL, PASSWORD, SPREAD, RedisCfg
from tinyexp.redis_cache.memory import fitting_memory_gb
from tinyexp.redis_cache.server import RedisServers
from tinyexp.redis_cache.shards import Shards, check, seal_of_password

logger = logging.getLogger("tinyexp")

Exchange = Callable[[str], list[str]]  # gives each rank what every rank gives, in rank order; every rank must call it


@dataclass(frozen=True)
class Service:
    """A running cache and this rank's end of it."""

    cache: RedisByteCache
    description: str  # for the log


@contextlib.contextmanager
def served_cache(cfg: RedisCfg, environment: Environment, exchange: Exchange) -> Iterator[Service | None]:
    """The cache that the configuration asks for, for as long as the block lasts; None where it asks for none. For every rank.

    Of several ranks on a node the first starts the servers. They end with the block, and also when that rank ends in any other
    way. Under tinyexp-run-with-redis its servers are used, and left alone.

    Raises: MachineError if a server cannot be started, reached or used, ConfigError for one that is not to be trusted.
    """
    if not cfg.redis_cache_enabled:
        yield None
        return
    with contextlib.ExitStack() as stack:
        service = _outside(cfg, environment, exchange) if cfg.is_outside else _own(cfg, environment, exchange, stack)
        check(service.cache.shards.servers)
        stack.callback(service.cache.close)
        yield service
        exchange("")  # nobody ends a server that another rank may still read


def _outside(cfg: RedisCfg, environment: Environment, exchange: Exchange) -> Service:
    servers = cfg.outside_servers()
    password = os.environ.get(PASSWORD)
    drawn = exchange(secrets.token_hex(32) if environment.world.rank == 0 else "")[0]
    shards = Shards(servers, seal_of_password(password) if password else bytes.fromhex(drawn))
    kept = "" if password else f"; without {PASSWORD} nothing that an earlier run has put there is trusted"
    return Service(
        RedisByteCache(shards, num_ranks=environment.world.size), f"outside servers {', '.join(map(str, servers))}{kept}"
    )


def _own(cfg: RedisCfg, environment: Environment, exchange: Exchange, stack: contextlib.ExitStack) -> Service:
    """Servers of this run. Every rank takes part in the same two exchanges, whatever it finds on its node."""
    is_first = environment.local.rank == 0
    nodes = [rank for rank, first in enumerate(exchange("first" if is_first else "")) if first]
    if cfg.redis_rendezvous_world_size == SPREAD and len(nodes) > 1:
        described = _start_part(cfg, environment, nodes, stack) if is_first else ""
        parts = [Shards.from_text(text) for text in exchange(described) if text]
        return _spread(parts, len(nodes), environment.world.size)
    given = os.environ.get(FOLDER, "")
    if given and Path(given).is_dir():  # a node of a cluster on which the command does not run has no such folder
        exchange("")
        shards = Shards.read(Path(given))
        return Service(
            RedisByteCache(shards, num_ranks=environment.world.size),
            f"the {len(shards.servers)} shards of tinyexp-run-with-redis",
        )
    servers = _started([str(port) for port in cfg.redis_cluster_ports], cfg, stack) if is_first else None
    # their secrets do not leave the node: its ranks hear of a folder, and read it
    folder = exchange(str(servers.folder) if servers else "")[environment.world.rank - environment.local.rank]
    shards = Shards.read(Path(folder))
    about = f", here {servers}" if servers else ""
    return Service(RedisByteCache(shards, num_ranks=environment.world.size), f"{len(shards.servers)} shards on each node{about}")


def _start_part(cfg: RedisCfg, environment: Environment, nodes: Sequence[int], stack: contextlib.ExitStack) -> str:
    """Start this node's part of the shards, at its address in the network of the run, which carries their secrets too.

    Raises: ConfigError for a public address.
    """
    ports = ports_of_node(cfg.redis_cluster_ports, nodes.index(environment.world.rank), len(nodes))
    if not ports:
        return ""
    host = own_address(environment.master_addr, environment.master_port)
    if problems := address_problems(host, key=f"redis_cfg.redis_rendezvous_world_size={SPREAD} on {host_name()}"):
        raise ConfigError(f"{problems[0]}; or, with redis_cfg.redis_rendezvous_world_size={LOCAL}, a cache on each node")
    return _started([str(port) for port in ports], cfg, stack, host=host).shards.to_text()


def _spread(parts: Sequence[Shards], num_nodes: int, num_ranks: int) -> Service:
    servers = tuple(server for part in parts for server in part.servers)
    cache = RedisByteCache(Shards(servers, parts[0].seal), num_ranks=num_ranks)
    return Service(cache, f"{len(servers)} shards spread over {num_nodes} nodes")


def ports_of_node(ports: Sequence[int], node: int, num_nodes: int) -> list[int]:
    """The shards that one of the nodes serves."""
    return list(ports[node::num_nodes])


def own_address(master_addr: str, master_port: int) -> str:
    """The address of this machine from which it reaches rank 0, and at which the others reach it."""
    family, kind, protocol, _, target = socket.getaddrinfo(master_addr, master_port or 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing
        return probe.getsockname()[0]


def _started(names: list[str], cfg: RedisCfg, stack: contextlib.ExitStack, *, host: str = "") -> RedisServers:
    memory_gb, lowered = fitting_memory_gb(cfg.redis_cache_max_memory, asked_by="redis_cfg.redis_cache_max_memory=")
    if lowered:
        logger.warning("%s: %s", host_name(), lowered)
    servers = RedisServers(names, max_memory_gb=memory_gb, host=host)
    stack.callback(servers.stop)
    return servers
