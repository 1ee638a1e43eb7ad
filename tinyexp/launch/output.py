"""What remote ranks print, on the driver's own stdout and stderr, whole lines at a time and nothing added.

Ray's own way prefixes every line, merges lines that differ only in digits, and loses the last ones of a run that ends. Here a
rank's descriptors 1 and 2 *are* two sockets to the driver. The first one also leads back: a byte on it asks the rank to
stop, and its end tells the rank that the driver is gone.
"""

import hmac
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from tinyexp.launch.rendezvous import listen
from tinyexp.launch.worker import write_whole_lines

TOKEN_BYTES = 32
CONNECT_S = 30.0
UNFINISHED_S = 0.2  # after this a line without an end is printed too: a progress bar
STDOUT, STDERR = 1, 2


class OutputServer:
    """The driver's end. Ranks connect to `address` and prove themselves with `token`."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = listen(host)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._printing = threading.Lock()
        self._stdout_links: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to every connected rank, on whichever machine it is."""
        for link in self._stdout_links:
            with suppress(OSError):  # it has left
                link.send(b"!")

    def close(self, timeout_s: float) -> None:
        """Print what the ranks have sent until they end, for at most `timeout_s`."""
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                link, _ = self._listener.accept()
                thread = threading.Thread(target=self._copy, args=(link,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            link.settimeout(CONNECT_S)
            greeting = b""
            while len(greeting) <= TOKEN_BYTES:
                greeting += link.recv(TOKEN_BYTES + 1 - len(greeting)) or bytes(TOKEN_BYTES + 1)
            if not hmac.compare_digest(greeting[:TOKEN_BYTES], self.token):
                return
            if greeting[TOKEN_BYTES] == STDOUT:
                self._stdout_links.append(link)
            link.settimeout(UNFINISHED_S)
            self._print_lines(link, sys.stdout if greeting[TOKEN_BYTES] == STDOUT else sys.stderr)

    def _print_lines(self, link: socket.socket, stream: TextIO) -> None:
        pending = b""
        while True:
            try:
                received = link.recv(1 << 16)
                pending += received
                end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1 if received else len(pending)
            except TimeoutError:
                received, end = b"more may come", len(pending)
            self._print(pending[:end], stream)
            pending = pending[end:]
            if not received:
                return

    def _print(self, text: bytes, stream: TextIO) -> None:
        if text:
            # a reader of ours that has gone must not stop the ranks: what they print is then dropped
            with self._printing, suppress(OSError, ValueError):
                stream.write(text.decode(errors="replace"))
                stream.flush()


def print_at_driver(address: tuple[str, int], token: bytes) -> None:
    """Connect stdout and stderr of this rank, those of its libraries and loader workers included, to an `OutputServer`."""
    for descriptor in (STDERR, STDOUT):
        link = socket.create_connection(address, timeout=CONNECT_S)
        link.settimeout(None)
        link.sendall(token + bytes([descriptor]))
        os.dup2(link.fileno(), descriptor)
        if descriptor == STDOUT:
            threading.Thread(target=_listen_to_driver, args=(link,), daemon=True).start()
    write_whole_lines()


def _listen_to_driver(link: socket.socket) -> None:
    with suppress(OSError):
        while link.recv(1):
            os.kill(os.getpid(), signal.SIGTERM)
    os._exit(1)  # the driver is gone
