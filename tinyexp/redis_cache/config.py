"""The keys of the Redis byte cache."""

from dataclasses import dataclass, field


@dataclass
class RedisCfg:
    """A cache of the training files' bytes in Redis. Not in this version: a run that asks for it says so and reads from disk."""

    redis_cache_enabled: bool = False  # serve the training files from memory after their first read
    redis_cluster_host: str = "127.0.0.1"  # where the shards listen
    redis_cluster_ports: list[int] = field(default_factory=lambda: [7000, 7001, 7002, 7003, 7004, 7005])  # one shard a port
    redis_cache_max_memory: float = 160.0  # GB over all shards of a node
    redis_rendezvous_world_size: int = 1  # 1: a Redis on each Ray node; -1: one over all nodes; > 1: an outside cluster

    def fallback(self) -> str | None:
        """What a run that asks for the cache gets instead; None where it does not ask."""
        if not self.redis_cache_enabled:
            return None
        return "redis_cfg.redis_cache_enabled=true: this version has no cache, every file is read from disk; samples are the same"
