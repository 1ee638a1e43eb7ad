"""The secret that the machines of a Ray cluster share."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tinyexp.errors import MachineError
from tinyexp.launch.cluster_node import Node
from tinyexp.process import host_name


@contextlib.contextmanager
def published_token(node: Node) -> Iterator[None]:
    """The secret of the cluster, in this process's variables; for the other nodes in a file of the user's home too."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if _has_token():
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    path = _token_path(node)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)  # of a head that was killed
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(os.environ["RAY_AUTH_TOKEN"])
        yield
    finally:
        path.unlink(missing_ok=True)


def fetch_token(node: Node) -> None:
    """Put the secret that the head has published into this process's variables. Raises: MachineError where there is none."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if _has_token():
        return
    path = _token_path(node)
    try:
        os.environ["RAY_AUTH_TOKEN"] = path.read_text().strip()  # the head wrote it before it answered
    except OSError as error:
        raise MachineError(
            f"node {node.rank} ({host_name()}) has no token for the cluster at {node.head}: RAY_AUTH_TOKEN is not set and {path} "
            f"cannot be read ({error.strerror}); start all nodes with the same --head-addr and a home folder that they share, or "
            "set RAY_AUTH_TOKEN to one secret on all of them (openssl rand -hex 32)"
        ) from None


def _has_token() -> bool:
    return os.environ["RAY_AUTH_MODE"] != "token" or bool(
        os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    )


def _token_path(node: Node) -> Path:
    return Path.home() / ".tinyexp" / f"ray-token-{node.head.host}-{node.head.port}"
