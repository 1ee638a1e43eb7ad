"""What a loader worker is to its rank: there until the rank has done with it, and not longer."""

import os
import signal
import sys
import threading

from tinyexp.process import die_with_parent


def serve_rank(rank_pid: int, worker: int) -> None:
    """Tie a loader worker to its rank, as the `worker_init_fn` of a DataLoader: `functools.partial(serve_rank, os.getpid())`.

    It ends with the rank, also when that is killed; torch's own workers take 5 s to notice (torch 2.14.1). SIGTERM and SIGINT of
    others do not end it: torchrun, schedulers and terminals send them to all processes of a rank, which needs its workers until
    it has saved. The thread that starts the iterator must live as long as its workers. Linux only.
    """
    die_with_parent(rank_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_leave_at_word_of, args=(rank_pid,), daemon=True).start()


def _leave_at_word_of(rank_pid: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank_pid:
        pass
    os._exit(0)
