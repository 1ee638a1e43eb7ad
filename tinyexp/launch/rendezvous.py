"""The store at which the ranks of a run meet, on a port that is held from the moment it is chosen."""

import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"


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
