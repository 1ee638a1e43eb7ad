"""Which run a process belongs to: one name for all ranks that a launcher starts, at first and again, another for every run."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator

from tinyexp.process import host_name

OWN = "TINYEXP_RUN"  # variables of that prefix reach the ranks of every launcher of ours
OF_TORCHRUN = "TORCHELASTIC_ERROR_FILE"  # <a folder that each torchrun makes for itself>/attempt_<n>/<local rank>/error.json


@contextlib.contextmanager
def new_run() -> Iterator[None]:
    """Ranks that this process starts within the block have one `run_id`, however often they are started."""
    outer = os.environ.get(OWN)
    os.environ[OWN] = uuid.uuid4().hex
    try:
        yield
    finally:
        if outer is None:
            del os.environ[OWN]
        else:
            os.environ[OWN] = outer


def run_id() -> str:
    """The name of the run of this process, under torchrun one for each node; empty where nothing could start it again."""
    if OWN in os.environ:
        return os.environ[OWN]
    folder, _, _ = os.environ.get(OF_TORCHRUN, "").rpartition("/attempt_")
    name = folder or os.environ.get("TORCHELASTIC_RUN_ID")
    return hashlib.sha256(f"{host_name()}:{name}".encode()).hexdigest()[:32] if name else ""
