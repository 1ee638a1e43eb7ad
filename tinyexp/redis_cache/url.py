"""`redis_cfg.redis_url`, taken apart."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tinyexp.masking import masked, masked_whole

SCHEMES = ("redis", "rediss", "unix")
PASSWORD = "TINYEXP_REDIS_PASSWORD"  # the variable for that of an outside server
USE = f"use redis://host:port, rediss://host:port for TLS, or unix:///path; a password belongs into the variable {PASSWORD}"


@dataclass(frozen=True)
class RedisUrl:
    """What a URL says of a server. Its password comes from elsewhere."""

    path: str = ""  # of a socket
    host: str = ""
    port: int = 0
    username: str | None = None
    tls: bool = False
    db: int = 0

    @classmethod
    def parse(cls, url: str) -> "RedisUrl":
        """Raises: ValueError that says what is wrong with it, without a password that it may hold."""
        try:
            parts = urlsplit(url)
            port, path = parts.port, unquote(parts.path)
        except ValueError:  # whose words may be of a password
            raise ValueError(f"redis_cfg.redis_url={masked_whole(url)}: {USE}") from None
        if parts.query or parts.fragment or "@" in path:
            raise ValueError(
                f"redis_cfg.redis_url={masked_whole(url)}: what follows a ? or #, or an @ in the path, means nothing here; {USE}"
            )
        if parts.password is not None:
            raise ValueError(
                f"redis_cfg.redis_url={masked(url)} holds a password, which `ps`, logs and checkpoints would show; "
                f"leave it out and put it into the environment variable {PASSWORD}"
            )
        database = path.strip("/")
        is_good = bool(database) and not parts.hostname if parts.scheme == "unix" else not database or database.isdecimal()
        if not is_good or port == 0 or parts.scheme not in SCHEMES:
            raise ValueError(f"redis_cfg.redis_url={masked_whole(url)}: {USE}")
        username = unquote(parts.username) if parts.username else None
        if parts.scheme == "unix":
            return cls(path=path, username=username)
        host = parts.hostname or "127.0.0.1"
        return cls(host=host, port=port or 6379, username=username, tls=parts.scheme == "rediss", db=int(database or 0))
