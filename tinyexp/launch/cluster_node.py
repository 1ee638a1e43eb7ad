"""The machines of a cluster that is started by hand, and where they find each other."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from tinyexp.errors import MachineError
from tinyexp.launch.rendezvous import interface_addresses, source_address
from tinyexp.process import host_name

PORT = 6379  # Ray's own default
CONNECT_S = 5.0


@dataclass(frozen=True)
class Address:
    """Where the head of the cluster is to be reached, as the user wrote it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> "Address | None":
        """The address that a user wrote as HOST or HOST:PORT; None where it is neither."""
        host, _, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", str(PORT))
        bare = host.removeprefix("[").removesuffix("]")
        if not bare or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            return None
        return cls(bare, int(port))

    def answering(self) -> str:
        """The IP address at which something answers; empty where nothing does."""
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=CONNECT_S) as link:
            return link.getpeername()[0]
        return ""


@dataclass(frozen=True)
class Node:
    """This machine's part."""

    rank: int
    count: int
    head: Address
    timeout_s: float


def address_of_head(node: Node) -> str:
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
