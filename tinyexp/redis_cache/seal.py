"""Values as they lie in the cache: behind a keyed checksum, so that damaged, foreign or swapped bytes are recognised."""

import hashlib
import hmac

CHECKSUM_BYTES = 16  # of HMAC-SHA256


def sealed(secret: bytes, key: bytes, value: bytes) -> bytes:
    """The checksum of key and value, then the value."""
    return _checksum(secret, key, value) + value


def opened(secret: bytes, key: bytes, stored: bytes) -> bytes | None:
    """The value that was sealed under this key with this secret; None for any other bytes."""
    value = stored[CHECKSUM_BYTES:]
    if not hmac.compare_digest(stored[:CHECKSUM_BYTES], _checksum(secret, key, value)):
        return None
    return value


def _checksum(secret: bytes, key: bytes, value: bytes) -> bytes:
    checksum = hmac.new(secret, len(key).to_bytes(8, "little") + key, hashlib.sha256)
    checksum.update(value)
    return checksum.digest()[:CHECKSUM_BYTES]
