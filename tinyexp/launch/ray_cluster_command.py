"""`tinyexp-run-with-ray-cluster`: a Ray cluster of several machines for as long as one command runs.

    tinyexp-run-with-ray-cluster --node-count 2 --node-rank 0 --head-addr gpu0 -- python -m tinyexp.examples.vit_tp_exp
    tinyexp-run-with-ray-cluster --node-count 2 --node-rank 1 --head-addr gpu0 -- python -m tinyexp.examples.vit_tp_exp

Start it on every machine, with the machine's own rank. The command runs on node 0 alone.
"""

import argparse
import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tinyexp.errors import ConfigError, MachineError, TinyExpError
from tinyexp.launch.cluster_node import CONNECT_S, PORT, Address, Node, address_of_head
from tinyexp.launch.output import SILENCE_S
from tinyexp.launch.ray_cluster import OBJECT_STORE_BYTES, SETTINGS, joined_cluster, private_folder
from tinyexp.launch.ray_token import fetch_token, published_token
from tinyexp.launch.rendezvous import source_address
from tinyexp.launch.supervise import GRACE_S, POLL_S
from tinyexp.process import host_name
from tinyexp.signals import StopRequest
from tinyexp.wrapped import run_wrapped

START_S = 120.0  # for the head to answer
STOP_S = 3.0  # for Ray to end by itself


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
    head, problems = Address.of(found.head_addr), []
    if found.node_count < 1:
        problems.append(f"--node-count {found.node_count}: a number of at least 1 is needed")
    elif not 0 <= found.node_rank < found.node_count:
        problems.append(f"--node-rank {found.node_rank}: with --node-count {found.node_count} it is 0 to {found.node_count - 1}")
    if head is None:
        problems.append(
            f"--head-addr {found.head_addr}: HOST or HOST:PORT is needed, an IPv6 address in brackets: [fd00::1]:6379"
        )
    if not found.timeout_s > 0:  # nor nan
        problems.append(f"--timeout-s {found.timeout_s:g}: a number of seconds above 0 is needed")
    if found.node_rank == 0 and shutil.which(found.command[0]) is None:
        problems.append(f"the command {found.command[0]}: this machine has no such program, or may not start it")
    if problems or head is None:
        raise ConfigError("\n  ".join(["these arguments cannot work:", *problems]))
    return Node(found.node_rank, found.node_count, head, found.timeout_s), found.command


def lead(node: Node, command: Sequence[str], stop: StopRequest) -> int:
    """Start the head, wait for the other nodes, run the command. Its exit status."""
    address = address_of_head(node)
    cluster = str(Address(address, node.head.port))
    if Address(address, node.head.port).answering():
        raise MachineError(f"something listens at {cluster} already; end it, or use --head-addr {node.head.host}:<another port>")
    with published_token(node), private_folder() as folder:
        settings = ["--head", f"--port={node.head.port}", "--include-dashboard=false", "--disable-usage-stats"]
        with _ray(settings, address, folder) as ray:
            ray.wait_until(lambda: Address(address, node.head.port).answering(), "the head does not answer", START_S, stop)
            _await_nodes(node, cluster, stop)
            return run_wrapped(command, os.environ | {"RAY_ADDRESS": cluster}, stop, watch=ray.raise_if_ended)


def follow(node: Node, stop: StopRequest) -> int:
    """Be part of the cluster until its head ends; after a signal, for GRACE_S at most, after a second one no longer."""
    deadline = time.monotonic() + node.timeout_s
    while not (head := node.head.answering()):
        stop.raise_if_asked()
        if time.monotonic() > deadline:
            raise MachineError(
                f"node {node.rank} ({host_name()}) has found no head at {node.head} for {node.timeout_s:g} s; start --node-rank "
                "0 on that machine, check that this one reaches its port, or wait longer with --timeout-s"
            )
        time.sleep(POLL_S)
    fetch_token(node)
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


if __name__ == "__main__":
    main()
