"""`tinyexp-run-with-ray-cluster`: a Ray cluster of several machines for as long as one command runs.

    tinyexp-run-with-ray-cluster --node-count 2 --node-rank 0 --head-addr gpu0 -- python -m tinyexp.examples.vit_tp_exp
    tinyexp-run-with-ray-cluster --node-count 2 --node-rank 1 --head-addr gpu0 -- python -m tinyexp.examples.vit_tp_exp

Start it on every machine, with the machine's own rank. The command runs on node 0 alone.
"""

import argparse
import contextlib
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tinyexp.errors import ConfigError, MachineError, TinyExpError
from tinyexp.launch.output import SILENCE_S
from tinyexp.launch.ray_cluster import OBJECT_STORE_BYTES, SETTINGS, joined_cluster, private_folder
from tinyexp.launch.rendezvous import interface_addresses, source_address
from tinyexp.launch.supervise import GRACE_S, POLL_S
from tinyexp.process import die_with_parent, host_name
from tinyexp.signals import StopRequest

PORT = 6379  # Ray's own default
CONNECT_S = 5.0
START_S = 120.0  # for the head to answer
STOP_S = 3.0  # for Ray to end by itself


@dataclass(frozen=True)
class Address:
    """Where the head of the cluster is to be reached, as the user wrote it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Node:
    """This machine's part."""

    rank: int
    count: int
    head: Address
    timeout_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """End this process with the status of the command, or with that of our own error."""
    try:
        node, command = parse(sys.argv[1:] if arguments is None else arguments)
        with StopRequest() as stop:
            status = lead(node, command, stop) if node.rank == 0 else follow(node, stop)
        sys.exit(status)
    except TinyExpError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGINT)


def parse(arguments: Sequence[str]) -> tuple[Node, list[str]]:
    """This machine's part, and the command. Raises: ConfigError that lists everything that cannot work."""
    description, _, example = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "tinyexp-run-with-ray-cluster",
        description=description.partition(": ")[2],
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--node-count", type=int, required=True, help="machines of the cluster")
    parser.add_argument("--node-rank", type=int, required=True, help="of this machine, from 0; the command runs on 0")
    parser.add_argument("--head-addr", required=True, metavar="HOST[:PORT]", help=f"of machine 0; the port is {PORT} by default")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="seconds to wait for the other machines; default 300")
    parser.add_argument("command", nargs="+", help="and its arguments, after --")
    found = parser.parse_args(arguments)
    head, problems = _address(found.head_addr), []
    if found.node_count < 1:
        problems.append(f"--node-count {found.node_count}: a number of at least 1 is needed")
    elif not 0 <= found.node_rank < found.node_count:
        problems.append(f"--node-rank {found.node_rank}: with --node-count {found.node_count} it is 0 to {found.node_count - 1}")
    if head is None:
        problems.append(
            f"--head-addr {found.head_addr}: HOST or HOST:PORT is needed, an IPv6 address in brackets: [fd00::1]:6379"
        )
    if found.timeout_s <= 0:
        problems.append(f"--timeout-s {found.timeout_s:g}: a number of seconds above 0 is needed")
    if problems or head is None:
        raise ConfigError("\n  ".join(["these arguments cannot work:", *problems]))
    return Node(found.node_rank, found.node_count, head, found.timeout_s), found.command


def lead(node: Node, command: Sequence[str], stop: StopRequest) -> int:
    """Start the head, wait for the other nodes, run the command. Its exit status."""
    address = _own_address(node)
    cluster = str(Address(address, node.head.port))
    if _answers(Address(address, node.head.port)):
        raise MachineError(f"something listens at {cluster} already; end it, or use --head-addr {node.head.host}:<another port>")
    with _published_token(node), private_folder() as folder:
        settings = ["--head", f"--port={node.head.port}", "--include-dashboard=false", "--disable-usage-stats"]
        with _ray(settings, address, folder) as ray:
            ray.wait_until(lambda: _answers(Address(address, node.head.port)), "the head does not answer", START_S, stop)
            _await_nodes(node, cluster, stop)
            return _run(command, os.environ | {"RAY_ADDRESS": cluster}, ray, stop)


def follow(node: Node, stop: StopRequest) -> int:
    """Be part of the cluster until its head ends; after a signal, for GRACE_S at most, after a second one no longer."""
    deadline = time.monotonic() + node.timeout_s
    while not (head := _answers(node.head)):
        stop.raise_if_asked()
        if time.monotonic() > deadline:
            raise MachineError(
                f"node {node.rank} ({host_name()}) has found no head at {node.head} for {node.timeout_s:g} s; start --node-rank "
                "0 on that machine, check that this one reaches its port, or wait longer with --timeout-s"
            )
        time.sleep(POLL_S)
    _fetch_token(node)
    # by IP address: gRPC's own resolver does not know every name that this machine knows (Ray 2.60)
    settings = [f"--address={Address(head, node.head.port)}"]
    with private_folder() as folder, _ray(settings, source_address(head), folder) as ray:
        heard, leave_at = time.monotonic(), math.inf
        while stop.count < 2 and time.monotonic() < leave_at:
            if stop.count and leave_at == math.inf:  # a job that is cancelled is so on all nodes: let the ranks here save first
                leave_at = time.monotonic() + GRACE_S
            try:
                socket.create_connection((node.head.host, node.head.port), timeout=CONNECT_S).close()
                heard = time.monotonic()
                ray.raise_if_ended()  # while the head lives; without one it may end before we notice
            except ConnectionRefusedError:
                break  # it has ended
            except OSError as error:
                if time.monotonic() > heard + SILENCE_S:
                    raise MachineError(
                        f"the head of the cluster, {node.head}, is lost: it has not answered for {SILENCE_S} s ({error})"
                    ) from None
            time.sleep(1.0)
    stop.raise_if_asked()
    return 0


class RayProcess:
    """The `ray start --block` of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def raise_if_ended(self) -> None:
        """Raises: MachineError with what Ray said last."""
        if self._process.poll() is not None:
            said = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            raise MachineError(
                f"Ray on node {host_name()} has ended with status {self._process.returncode}: {said[-1] if said else 'no word'}"
            )

    def wait_until(self, is_so: Callable[[], object], otherwise: str, timeout_s: float, stop: StopRequest) -> None:
        """Wait for something that this Ray does. Raises: MachineError if it ends, or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            stop.raise_if_asked()
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise MachineError(f"Ray on node {host_name()}: {otherwise} after {timeout_s:g} s")
            time.sleep(POLL_S)


@contextlib.contextmanager
def _ray(settings: Sequence[str], address: str, folder: Path) -> Iterator[RayProcess]:
    """Ray on this machine, whose processes end with the block, by the guard of the folder if not by themselves."""
    program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--temp-dir={folder / 'r'}"]
    program += [f"--node-ip-address={address}", f"--object-store-memory={OBJECT_STORE_BYTES}", *settings]
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | SETTINGS
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )
    try:
        yield RayProcess(process, folder / "start.log")
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()


def _await_nodes(node: Node, cluster: str, stop: StopRequest) -> None:
    import ray

    deadline = time.monotonic() + node.timeout_s
    with joined_cluster(cluster):
        while len(there := [each for each in ray.nodes() if each["Alive"]]) < node.count:
            stop.raise_if_asked()
            if time.monotonic() > deadline:
                names = ", ".join(sorted(f"{each['NodeManagerHostname']} ({each['NodeManagerAddress']})" for each in there))
                raise MachineError(
                    f"{len(there)} of {node.count} nodes are there after {node.timeout_s:g} s: {names}; start the same command "
                    f"on the others with their --node-rank and --head-addr {node.head}, or wait longer with --timeout-s"
                )
            time.sleep(POLL_S)


def _run(command: Sequence[str], variables: dict[str, str], ray: RayProcess, stop: StopRequest) -> int:
    """The exit status of the command, to which signals are passed on."""
    try:
        # in a session of its own, so that Ctrl-C at a terminal reaches it once, through us
        process = subprocess.Popen(command, env=variables, start_new_session=True, preexec_fn=die_with_parent)
    except OSError as error:
        raise ConfigError(f"the command {command[0]} cannot be started: {error.strerror}") from None
    passed_on = 0
    try:
        while process.poll() is None:
            if stop.count > passed_on:
                passed_on = stop.count
                process.send_signal(stop.number)
            ray.raise_if_ended()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _own_address(node: Node) -> str:
    """The address of this machine, the head, at which the others reach it.

    On many distributions a machine's own name is a loopback address to itself. Then its other address is meant, if it has one.
    """
    address = source_address(node.head.host)
    if not address or (ip_address(address).is_loopback and node.count > 1):
        others = {str(found): name for name, found in interface_addresses() if found.version == 4 and not found.is_loopback}
        if address and len(others) == 1:
            return next(iter(others))
        shown = ", ".join(f"{found} ({name})" for found, name in others.items()) or "none"
        raise MachineError(
            f"--head-addr {node.head.host} is {address or 'no known address'} on the machine itself, node 0 ({host_name()}), "
            f"where the others cannot reach it; give, on all nodes, the one of its addresses that leads to them: {shown}"
        )
    return address


def _answers(address: Address) -> str:
    """The IP address at which something answers; empty where nothing does."""
    with suppress(OSError), socket.create_connection((address.host, address.port), timeout=CONNECT_S) as link:
        return link.getpeername()[0]
    return ""


def _address(text: str) -> Address | None:
    host, _, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", str(PORT))
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return None
    return Address(bare, int(port))


@contextlib.contextmanager
def _published_token(node: Node) -> Iterator[None]:
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


def _fetch_token(node: Node) -> None:
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


if __name__ == "__main__":
    main()
