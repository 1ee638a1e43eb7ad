from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from tinyexp.launch.rendezvous import LOOPBACK, listen, serve_store

LISTENS = "0A"  # a state in /proc/net/tcp


def listening_addresses(port: int) -> list[str]:
    """Hexadecimal addresses, of IPv4 and IPv6, on which anything listens at the port."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            address, _, at = line.split()[1].partition(":")
            if int(at, 16) == port and line.split()[3] == LISTENS:
                found.append(address)
    return found


def test_the_store_answers_on_loopback_and_nowhere_else():
    listener = listen(LOOPBACK)
    port = listener.getsockname()[1]
    store = serve_store(listener)
    assert listening_addresses(port) == ["0100007F"]
    client = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=10))
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_two_runs_get_two_ports():
    with listen(LOOPBACK) as one, listen(LOOPBACK) as other:
        assert one.getsockname()[1] != other.getsockname()[1]
