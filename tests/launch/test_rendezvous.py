import os
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tinyexp.launch.rendezvous import (
    LOOPBACK,
    interface_addresses,
    interface_of,
    listen,
    meet_across_nodes,
    serve_store,
    source_address,
)

LISTENS = "0A"  # a state in /proc/net/tcp


def listening_addresses(port: int) -> list[str]:
    """Hexadecimal addresses, of IPv4 and IPv6, on which anything listens at the port."""
    found = []
    for table in Path("/proc/net").glob("tcp*"):  # without tcp6 where a machine has no IPv6
        for line in table.read_text().splitlines()[1:]:
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


@pytest.fixture
def no_interface(monkeypatch):
    """GLOO_SOCKET_IFNAME is unset, and stays so for other tests."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the test")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


def test_every_address_of_this_machine_is_on_an_interface():
    assert ("lo", "127.0.0.1") in [(name, str(address)) for name, address in interface_addresses()]
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.9") == ""


def test_the_way_to_a_host_starts_at_an_address_of_this_machine():
    assert source_address(LOOPBACK) == LOOPBACK
    assert source_address("no.such.host.invalid") == ""


def test_a_master_on_loopback_is_warned_of_where_ranks_are_on_several_nodes(no_interface):
    assert "give torchrun --local-addr" in meet_across_nodes("localhost")
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_the_interface_that_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert meet_across_nodes("localhost") == ""
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
