"""A disk that is full, in the small."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_beyond(size: int) -> Iterator[None]:
    """While the block runs, this process cannot make a file longer than `size` bytes; Python raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
