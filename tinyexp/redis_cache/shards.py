"""Where the shards of a cache listen, and what opens them."""

import contextlib
import hashlib
import json
import os
import ssl
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tinyexp.errors import MachineError

if TYPE_CHECKING:
    from redis import Redis

SHARDS_FILE = "shards.json"  # in the folder of servers that a process of ours has started
LOCAL_TIMEOUT_S, NETWORK_TIMEOUT_S = 0.25, 1.0  # a healthy server answers a read in under a millisecond
CHECK_KEY = "tinyexp:check"
HEALTH_CHECK_S = 30  # a connection that was idle for longer is tried before it is used


@dataclass(frozen=True)
class Shard:
    """One server: at a unix socket, or at a host and port. Its printed form holds no password."""

    path: str = ""  # of the socket
    host: str = ""
    port: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    db: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    @property
    def timeout_s(self) -> float:
        return LOCAL_TIMEOUT_S if self.path else NETWORK_TIMEOUT_S

    def connect(self) -> "Redis":
        """A client of this shard that never tries twice and never waits longer than the timeout; it connects when first used.

        redis-py's defaults retry: a read of a silent server takes 59 s with them (redis-py 8.1).
        """
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis(
            host=self.host or "localhost",
            port=self.port,
            unix_socket_path=self.path or None,
            username=self.username,
            password=self.password,
            ssl=self.tls,
            db=self.db,
            socket_timeout=self.timeout_s,
            socket_connect_timeout=self.timeout_s,
            socket_read_size=1 << 18,  # a value is about 110 kB
            retry=Retry(NoBackoff(), 0),
            health_check_interval=HEALTH_CHECK_S,
            protocol=2,
            driver_info=None,  # CLIENT SETINFO is none of the commands that our servers allow
        )


@dataclass(frozen=True)
class Shards:
    """All servers of a cache, in the order by which keys are dealt out, and the secret that seals its values."""

    servers: tuple[Shard, ...]
    seal: bytes = field(repr=False)  # key of the checksums; no server knows it

    def to_text(self) -> str:
        """For `from_text` in another process of the run. It holds secrets."""
        return json.dumps({"servers": [asdict(server) for server in self.servers], "seal": self.seal.hex()})

    @classmethod
    def from_text(cls, text: str) -> "Shards":
        found = json.loads(text)
        return cls(tuple(Shard(**server) for server in found["servers"]), bytes.fromhex(found["seal"]))

    def write(self, folder: Path) -> None:
        """Leave them for the other processes of this user on this machine."""
        with open(os.open(folder / SHARDS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(self.to_text())

    @classmethod
    def read(cls, folder: Path) -> "Shards":
        """What `write` left. Raises: MachineError if it is not there, or not this user's alone."""
        path = folder / SHARDS_FILE
        try:
            with open(path, encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                text = file.read()
        except OSError as error:
            raise MachineError(
                f"the Redis cache's {path} cannot be read: {error.strerror}; are its servers still running?"
            ) from error
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise MachineError(
                f"{path} belongs to another user or is open to others, and is not trusted; start a cache of your own"
            )
        return cls.from_text(text)


def seal_of_password(password: str) -> bytes:
    """The seal of a server that several runs share: what they have in common."""
    return hashlib.sha256(b"tinyexp seal\0" + password.encode()).digest()


def check(servers: Sequence[Shard]) -> None:
    """Raises: MachineError that says of each server that cannot be used why not."""
    if problems := [f"{shard}: {reason}" for shard in servers if (reason := _reason_against(shard))]:
        raise MachineError("\n  ".join(["the Redis cache cannot be used:", *problems]))


def _reason_against(shard: Shard) -> str:
    from redis import exceptions

    client = shard.connect()
    try:
        client.ping()
        client.mget([CHECK_KEY])
        with contextlib.suppress(exceptions.OutOfMemoryError):  # full: what it holds can be read all the same
            client.set(CHECK_KEY, b"", px=1000)
    except exceptions.AuthenticationError as error:
        how = "without a password" if shard.password is None else "with the password given"
        return f"refuses us {how} ({error}); set TINYEXP_REDIS_PASSWORD, and a user, if any, in redis_cfg.redis_url"
    except exceptions.NoPermissionError as error:
        return f"its user may not do what the cache needs ({error}); allow GET, MGET, SET and PING on tinyexp:*"
    except exceptions.TimeoutError:
        return f"accepts connections and says nothing for {shard.timeout_s:g} s; is it Redis that listens there?"
    except exceptions.ConnectionError as error:
        if isinstance(error.__context__, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({error.__context__.verify_message}); if an authority of your own has signed "
                "it, name the file with that authority's certificate in the environment variable SSL_CERT_FILE"
            )
        return f"cannot be reached ({error}); start the server, or correct redis_cfg.redis_cluster_host, _ports or redis_url"
    except exceptions.InvalidResponse as error:
        return f"does not speak Redis ({error}); something else listens there"
    except exceptions.RedisError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        client.close()
    return ""
