"""Where the ranks of a run meet: a store on a port that is held from the moment it is chosen, and the way to it."""

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915  # linux/sockios.h
IFREQ = "16s2xH4s16x"  # its interface name, port, and IPv4 address


def listen(host: str) -> socket.socket:
    """A socket that listens on a free port of `host` and on no other address.

    Ranks may connect to it before `serve_store` takes it over; they wait in its queue.
    """
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)


def serve_store(listener: socket.socket) -> "TCPStore":
    """A store served on the socket, which it owns from now on. It lives as long as the returned object."""
    from torch.distributed import TCPStore

    host, port = listener.getsockname()[:2]
    # without a socket of ours TCPStore listens on every address of the machine, whatever its host argument says (torch 2.14.1)
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def stay_on_loopback() -> None:
    """Keep gloo of this process off the network. Only right where all ranks are on this machine."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def meet_across_nodes(master_addr: str) -> str:
    """Let gloo of this process use the interface that leads to rank 0. Returns a warning where there is none to use.

    Left alone, gloo takes the address that the host's own name resolves to, often one that no other node can reach (torch
    2.14.1). GLOO_SOCKET_IFNAME stays as the user set it. NCCL chooses by itself: it knows more about its links.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or sys.platform != "linux":
        return ""
    address = source_address(master_addr)
    if address and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return (
            f"MASTER_ADDR={master_addr} is {address} on node {socket.gethostname()}, which no other node can reach: if the ranks "
            "do not meet, give torchrun --local-addr or --master-addr with this node's address, or set GLOO_SOCKET_IFNAME"
        )
    if interface := address and interface_of(address):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    return ""


def source_address(host: str) -> str:
    """The address of this machine from which it reaches a host; empty where there is no route or no such name."""
    with suppress(OSError):
        family, kind, protocol, _, (address, *_) = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect((address, 9))  # sends nothing
            return probe.getsockname()[0]
    return ""


def interface_of(address: str) -> str:
    """The name of the interface with an address of this machine; empty where none has it as its first one."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in interface_addresses() if found == wanted), "")


def interface_addresses() -> list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Interfaces of this machine with their addresses: the first of IPv4, all of IPv6. Linux only."""
    found: list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                request = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack(IFREQ, name.encode(), 0, bytes(4)))
                found.append((name, ipaddress.IPv4Address(struct.unpack(IFREQ, request)[2])))
    with suppress(OSError):  # a machine without IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            found.append((name, ipaddress.IPv6Address(int(digits, 16))))
    return found
