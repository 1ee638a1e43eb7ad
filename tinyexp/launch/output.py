"""What remote ranks print, on the driver's own stdout and stderr, whole lines at a time and nothing added.

Ray's own way prefixes every line, merges lines that differ only in digits, and loses the last ones of a run that ends. Here a
rank's descriptors 1 and 2 *are* two sockets to the driver. The first one also leads back: a byte on it is the number of a
signal for the rank, and its end tells the rank that the driver is gone, and the driver that the rank is. Both kernels see to it
that a machine which is switched off, or out of reach, ends it too.
"""

import hmac
import os
import secrets
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from tinyexp.launch.rendezvous import listen
from tinyexp.launch.worker import write_whole_lines

TOKEN_BYTES = 32
GREETING = struct.Struct(f"!{TOKEN_BYTES}sBI")  # token, descriptor, rank
CONNECT_S = 30.0
SILENCE_S = 15  # of a machine, after which its connections count as lost
UNFINISHED_S = 0.2  # after this a line without an end is printed too: a progress bar
STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class LinkEnd:
    """When a rank's connection ended, and whether its machine had merely fallen silent."""

    at: float  # by time.monotonic
    was_silent: bool


class OutputServer:
    """The driver's end. Ranks connect to `address` and prove themselves with `token`."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = listen(host)
        self.ended: dict[int, LinkEnd] = {}  # by rank
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._printing = threading.Lock()
        self._stdout_links: dict[int, socket.socket] = {}  # by rank
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to a connected rank, on whichever machine it is. A thread of its own raises it there."""
        with suppress(OSError):  # it has left
            self._stdout_links[rank].send(bytes([number]))

    def is_connected(self, rank: int) -> bool:
        """Whether the rank has connected its stdout; it stays so when it has left."""
        return rank in self._stdout_links

    def close(self, timeout_s: float) -> None:
        """Print what the ranks have sent until they end, for at most `timeout_s`; a rank that is left then ends by itself."""
        with suppress(OSError):  # closed before
            self._listener.setblocking(False)
            self._accept()  # ranks that have connected, and perhaps ended, since the thread was last given time
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for link in self._stdout_links.values():
            with suppress(OSError):  # it has ended
                link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # closed, or about to be and nobody waits
            while True:
                link, _ = self._listener.accept()
                thread = threading.Thread(target=self._copy, args=(link,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            link.settimeout(CONNECT_S)
            greeting = b""
            while len(greeting) < GREETING.size:
                greeting += link.recv(GREETING.size - len(greeting)) or bytes(GREETING.size)
            token, descriptor, rank = GREETING.unpack_from(greeting)
            if not hmac.compare_digest(token, self.token):
                return
            notice_silence(link)
            link.settimeout(UNFINISHED_S)
            if descriptor == STDERR:
                self._print_lines(link, sys.stderr)
                return
            self._stdout_links[rank] = link
            was_silent = self._print_lines(link, sys.stdout)
            self.ended[rank] = LinkEnd(time.monotonic(), was_silent)

    def _print_lines(self, link: socket.socket, stream: TextIO) -> bool:
        """Print until the link ends. Whether it ended because nothing was heard of the other machine."""
        pending = b""
        while True:
            try:
                received = link.recv(1 << 16)
                pending += received
                end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1 if received else len(pending)
            except ConnectionError:
                return False
            except OSError as error:
                if error.errno:  # ETIMEDOUT or EHOSTUNREACH; a mere UNFINISHED_S without text has no number
                    return True
                received, end = b"more may come", len(pending)
            self._print(pending[:end], stream)
            pending = pending[end:]
            if not received:
                return False

    def _print(self, text: bytes, stream: TextIO) -> None:
        if text:
            # a reader of ours that has gone must not stop the ranks: what they print is then dropped
            with self._printing, suppress(OSError, ValueError):
                stream.write(text.decode(errors="replace"))
                stream.flush()


def notice_silence(link: socket.socket) -> None:
    """Have the kernel end the connection when its other machine has said nothing, not even on being asked, for SILENCE_S."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 3)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)  # where text was on its way


def print_at_driver(address: tuple[str, int], token: bytes, rank: int) -> None:
    """Connect stdout and stderr of this rank, those of its libraries and loader workers included, to an `OutputServer`."""
    for descriptor in (STDERR, STDOUT):
        link = socket.create_connection(address, timeout=CONNECT_S)
        link.settimeout(None)
        notice_silence(link)
        link.sendall(GREETING.pack(token, descriptor, rank))
        os.dup2(link.fileno(), descriptor)
        if descriptor == STDOUT:
            threading.Thread(target=_listen_to_driver, args=(link,), daemon=True).start()
    write_whole_lines()


def _listen_to_driver(link: socket.socket) -> None:
    with suppress(OSError):
        while received := link.recv(1):
            os.kill(os.getpid(), received[0])
    os._exit(1)  # the driver is gone
