"""Can processes meet: on this machine, and from others?"""

import ipaddress
import socket

from tinyexp.doctor.finding import LIMITED, MISSING, OK, Checks, Options
from tinyexp.launch.rendezvous import LOOPBACK, interface_addresses, listen
from tinyexp.process import host_name

ANSWER_S = 3.0


def loopback(_: Options) -> tuple[str, str, str]:
    advice = f"allow this user to listen on {LOOPBACK} and to connect to it; ranks of one machine meet there"
    try:
        with listen(LOOPBACK) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection((LOOPBACK, port), timeout=ANSWER_S) as sender, listener.accept()[0] as receiver:
                sender.sendall(b"hello")
                receiver.settimeout(ANSWER_S)
                if receiver.recv(5) != b"hello":
                    return f"port {port} answers with something else", MISSING, advice
    except OSError as error:
        return f"no port of {LOOPBACK} can be used: {error}", MISSING, advice
    return f"port {port} of {LOOPBACK} is free, and answers", OK, ""


def other_machines(_: Options) -> tuple[str, str, str]:
    """Where other machines would find this one. A run on one machine does without."""
    name = host_name()
    others = [
        f"{interface} {address}"
        for interface, address in interface_addresses()
        if not (address.is_loopback or address.is_link_local)
    ]
    if not others:
        return f"{name}, no network but loopback", LIMITED, "runs of one machine work; several machines need an interface"
    found = f"{name}, {', '.join(others[:3])}"
    advice = "with several machines give torchrun --local-addr, or set GLOO_SOCKET_IFNAME to an interface that they reach"
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as error:
        return f"{found}; the name is not known here ({error.strerror})", LIMITED, advice
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return f"{found}; the name leads to {', '.join(sorted(addresses))}, this machine alone", LIMITED, advice
    return found, OK, ""


CHECKS: Checks = {"loopback": loopback, "network": other_machines}
