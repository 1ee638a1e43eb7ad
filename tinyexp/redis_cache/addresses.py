"""Which networks a server may be reached through in the clear."""

import ipaddress
import socket


def address_problems(host: str, *, key: str, in_clear: bool = True) -> list[str]:
    """Why a host cannot be talked to in the clear, or at all, one line each. key: by which it came."""
    try:
        public = public_addresses(host)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name of a host"
        return [f"{key}: the host {host} is not known here ({reason}); correct it"]
    if not public or not in_clear:
        return []
    return [
        f"{key}: {host} has the public address {public[0]}, to which passwords and images would travel in clear; "
        "use a private one, or an outside server with TLS: redis_cfg.redis_url=rediss://..."
    ]


def public_addresses(host: str) -> list[str]:
    """Those of a host's addresses that lie outside of private networks. Raises: OSError if the host is not known here."""
    found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    return sorted(address for address in found if ipaddress.ip_address(address).is_global)
