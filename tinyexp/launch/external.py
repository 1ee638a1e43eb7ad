"""Be one rank of a group that something else has started: torchrun, accelerate, or RANK and WORLD_SIZE set by hand."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tinyexp.launch.node_watch import NodeWatch
from tinyexp.launch.rendezvous import meet_across_nodes, stay_on_loopback
from tinyexp.launch.supervise import ECHO_S
from tinyexp.launch.worker import Failure, leave, limit_threads, run_as_rank, write_whole_lines
from tinyexp.process import Environment, die_with_parent, threads_per_rank

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def run_external(fn: Callable[[], Any]) -> list[Any]:
    """The result of `fn()` in this process, alone, where nothing has set RANK; it returns in this case only.

    As one rank of several the process ends here, with status 0 or that of the error, which is printed to stderr as
    `rank 1 of 2: ValueError: message`.

    Raises: MachineError if the variables of the group contradict each other.
    """
    environment = Environment.read()
    if environment.world.size == 1:
        return [fn()]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # a torchrun that is killed leaves its ranks training (torch 2.14.1)
    if environment.master_addr in LOOPBACK_NAMES:
        stay_on_loopback()
    elif (warning := meet_across_nodes(environment.master_addr)) and environment.local.rank == 0 and environment.spans_nodes:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    limit_threads(threads_per_rank(environment.local.size))
    write_whole_lines()
    watch = NodeWatch(environment)
    outcome = run_as_rank(fn, environment.world.rank)
    watch.say_goodbye()
    if outcome.failure is None:
        leave(0)
    _explain(outcome.failure, environment)
    leave(outcome.failure.exit_status)


def _explain(failure: Failure, environment: Environment) -> None:
    rank, size = environment.world.rank, environment.world.size
    if failure.is_peer_loss:
        time.sleep(ECHO_S)  # let the rank that failed first say why; torchrun ends this one meanwhile
        print(f"{failure.line(rank, size)}\n(most likely because another rank failed)", file=sys.stderr, flush=True)
    else:
        print("\n\n".join(filter(None, [failure.line(rank, size), failure.traceback])), file=sys.stderr, flush=True)
