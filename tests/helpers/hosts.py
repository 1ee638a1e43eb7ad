"""Two hosts on one machine: network namespaces joined by a cable, each with a name of its own and a second interface.

As on many distributions a host's own name is 127.0.1.1 to itself, and its real address to the other. Needs root and `ip`.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ETC = Path("/etc/netns")  # `ip netns exec` shows the files of a folder here in place of those in /etc
GONE_S = 10.0
SET_NAME = 'hostname "$0"; exec "$@"'


@dataclass
class Host:
    """A network namespace, whose default route does not lead to the other one.

    Commands in it see its interfaces and its name, and the files of this machine.
    """

    name: str
    address: str  # of the interface `wire`, on the cable to the other host
    spare_address: str  # of the interface `spare`, which the other host cannot reach
    namespace: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], *, folder: Path, **variables: str) -> subprocess.Popen[str]:
        """Start the command on this host, its output piped."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", SET_NAME, self.name, *command]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            inside, cwd=folder, env=surroundings() | variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        """The processes that run on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """End every process of this host, as a crash does."""
        deadline = time.monotonic() + GONE_S
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def cut(self) -> None:
        """Pull the cable: the other host hears nothing any more, not even that a connection has ended."""
        ip(f"-n {self.namespace} link set wire down")


def missing() -> str:
    """Why this machine cannot make hosts; empty where it can."""
    if os.geteuid():
        return "network namespaces need root"
    if absent := [program for program in ("ip", "unshare", "hostname") if not shutil.which(program)]:
        return f"{', '.join(absent)} not found (packages iproute2, util-linux and hostname)"
    probe = f"tinyexp-{os.getpid()}-{secrets.token_hex(4)}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow network namespaces"
    ip(f"netns del {probe}")
    return ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts for the duration of the block; nothing of them is left afterwards."""
    remove_leftovers()
    run = f"{os.getpid()}-{secrets.token_hex(4)}"
    hosts = tuple(
        Host(f"node{index}", f"10.77.0.{index + 1}", f"198.51.100.{index + 1}", f"tinyexp-{run}-{index}") for index in (0, 1)
    )
    try:
        for host in hosts:
            ip(f"netns add {host.namespace}")
            write_names(host, hosts)
        first, second = hosts
        ip(f"-n {first.namespace} link add wire type veth peer name wire netns {second.namespace}")
        for host in hosts:
            ip(f"-n {host.namespace} link add spare type veth peer name spare-end")
            ip(f"-n {host.namespace} address add {host.address}/24 dev wire")
            ip(f"-n {host.namespace} address add {host.spare_address}/24 dev spare")
            for interface in ("lo", "wire", "spare", "spare-end"):
                ip(f"-n {host.namespace} link set {interface} up")
            ip(f"-n {host.namespace} route add default dev spare")
        yield first, second
    finally:
        for host in hosts:
            remove(host)


def write_names(host: Host, hosts: Sequence[Host]) -> None:
    lines = ["127.0.0.1 localhost"]
    lines += [f"{'127.0.1.1' if each is host else each.address} {each.name}" for each in hosts]
    folder = ETC / host.namespace
    folder.mkdir(parents=True)
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # refuses at once; one out of reach costs seconds a question


def remove(host: Host) -> None:
    host.kill()
    for process in host.started:
        process.kill()
        process.communicate()
    subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)  # with its interfaces
    shutil.rmtree(ETC / host.namespace, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the hosts of test runs that were killed: a namespace carries the pid of its maker in its name."""
    for namespace in Path("/run/netns").glob("tinyexp-*-*-?"):
        if not Path("/proc", namespace.name.split("-")[1]).exists():
            remove(Host("", "", "", namespace.name))


def surroundings() -> dict[str, str]:
    """The variables of this process without those of a launcher, and with this checkout to import from."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"PYTHONPATH": str(ROOT)}


def ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {arguments}: {done.stderr}"
