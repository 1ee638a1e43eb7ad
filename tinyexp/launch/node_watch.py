"""Notice the loss of a node where no driver of ours watches the ranks: under torchrun, or with RANK and WORLD_SIZE set by hand.

The first rank of every other node keeps a connection to rank 0. Its kernel ends it when a node falls silent; a collective
would wait for `accelerator_cfg.timeout_s`. A rank that leaves of its own accord says goodbye first.
"""

import hmac
import json
import os
import secrets
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tinyexp.errors import WorkerFailed
from tinyexp.launch.output import CONNECT_S, SILENCE_S, notice_silence
from tinyexp.process import Environment, host_name

if TYPE_CHECKING:
    from torch.distributed import Store

STORE_S = 600.0  # for rank 0 to serve its store
GOODBYE = b"."
GREETING_BYTES = 4096  # at most


class NodeWatch:
    """This rank's part in the watch. Ranks that are not the first of their node have none."""

    def __init__(self, environment: Environment) -> None:
        import torch.distributed  # noqa: F401  here, not in the thread: two threads must not import torch at once

        self._environment = environment
        self._links: list[socket.socket] = []
        watches = environment.spans_nodes and environment.local.rank == 0
        if watches:
            target = self._watch_others if environment.world.rank == 0 else self._watch_first
            threading.Thread(target=target, daemon=True).start()

    def say_goodbye(self) -> None:
        """Whatever ends from now on, this rank is not lost."""
        for link in self._links:
            with suppress(OSError):  # it has left before
                link.sendall(GOODBYE)

    def _watch_others(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=1024)
        token = secrets.token_hex(16)
        with suppress(RuntimeError):  # no store, no group: the run says so itself
            self._store().set(self._key(), json.dumps([listener.getsockname()[1], token]))
            while True:
                link, address = listener.accept()
                threading.Thread(target=self._watch_node, args=(link, address[0], token), daemon=True).start()

    def _watch_node(self, link: socket.socket, address: str, token: str) -> None:
        self._links.append(link)  # at once: whoever is connected gets the goodbye of a rank that leaves just now
        with suppress(OSError, ValueError):  # no rank of ours
            link.settimeout(CONNECT_S)
            shown, name = json.loads(link.recv(GREETING_BYTES))
            if hmac.compare_digest(shown, token):
                self._await_end(link, f"{name} ({address.removeprefix('::ffff:')})")

    def _watch_first(self) -> None:
        with suppress(RuntimeError, OSError):  # rank 0 has no watch, or is gone already: collectives fail by themselves
            port, token = json.loads(self._store().get(self._key()))
            link = socket.create_connection((self._environment.master_addr, port), timeout=CONNECT_S)
            self._links.append(link)
            link.sendall(json.dumps([token, host_name()]).encode())
            self._await_end(link, f"of rank 0 ({self._environment.master_addr})")

    def _await_end(self, link: socket.socket, node: str) -> None:
        """Return after a goodbye; end this process, and with it the run, when the connection ends without one."""
        notice_silence(link)
        link.settimeout(None)
        line = f"the ranks on node {node} have ended without a report: the node is lost, or its own output says why"
        try:
            if link.recv(1):
                return
        except ConnectionError:
            pass  # reset: its kernel lives, its ranks do not
        except OSError:
            line = f"node {node} is lost: the node, or its network, has not answered for {SILENCE_S} s"
        print(line, file=sys.stderr, flush=True)
        os._exit(WorkerFailed.exit_status)

    def _store(self) -> "Store":
        from torch.distributed import TCPStore

        environment = self._environment
        timeout = timedelta(seconds=STORE_S)
        address = environment.master_addr, environment.master_port
        return TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timeout)

    def _key(self) -> str:
        return f"tinyexp/watch/{self._environment.attempt}"
