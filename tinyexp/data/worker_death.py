"""A loader worker that is gone, told in one message wherever its rank hears of it."""

import re
import signal
import threading
from collections.abc import Callable
from typing import Any

from tinyexp.errors import LoaderWorkerDied

# What torch 2.14 says of a worker that died: in its handler of SIGCHLD, or when it waits for a batch.
DEATH = re.compile(
    r"^DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?P<how>is killed by signal: [^.]+|exited unexpectedly)"
)
LOST_LINKS = (ConnectionError, EOFError)  # the pipe or socket through which a batch was coming
MEMORY = (
    "most likely the machine ran out of memory, where the kernel kills what uses much (`dmesg` tells). Set "
    "dataloader_cfg.num_workers lower, or the batch sizes of dataloader_cfg: each worker prepares two batches ahead"
)
SHARED_MEMORY = (
    "/dev/shm, through which batches come, is too small: enlarge it (docker: --shm-size), or set dataloader_cfg.num_workers or "
    "the batch sizes lower; num_workers=0 does without it"
)


def death_of_worker(error: BaseException) -> LoaderWorkerDied | None:
    """What to tell instead of `error`; None where it does not say that a loader worker died.

    An error that a worker itself raised, and torch passes on, is none of these.
    """
    found = DEATH.match(str(error)) if isinstance(error, RuntimeError) else None
    if found:
        how = found["how"].replace("is killed by signal:", "was killed by the signal")
        return LoaderWorkerDied(f"a loader worker (pid {found['pids']}) {how}: {SHARED_MEMORY if 'Bus' in how else MEMORY}")
    if isinstance(error, LOST_LINKS) and not str(error).startswith("Caught "):
        return LoaderWorkerDied(f"a loader worker is gone ({type(error).__name__} where a batch was to come): {MEMORY}")
    return None


class _Telling:
    """torch's handler of SIGCHLD, which raises wherever the main thread happens to be, with an error of ours."""

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except RuntimeError as error:
            if death := death_of_worker(error):
                raise death from None
            raise


def tell_of_dying_workers() -> None:
    """Have a worker's death raise LoaderWorkerDied in the main thread. Call it once workers run: torch has its handler then."""
    handler = signal.getsignal(signal.SIGCHLD)
    is_main = threading.current_thread() is threading.main_thread()  # no other may set a handler
    if is_main and callable(handler) and not isinstance(handler, _Telling):
        signal.signal(signal.SIGCHLD, _Telling(handler))
