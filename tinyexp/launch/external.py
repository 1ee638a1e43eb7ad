"""Be one rank of a group that something else has started: torchrun, accelerate, or RANK and WORLD_SIZE set by hand."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tinyexp.errors import Stopped
from tinyexp.launch.node_watch import NodeWatch
from tinyexp.launch.rendezvous import meet_across_nodes, stay_on_loopback
from tinyexp.launch.supervise import ECHO_S
from tinyexp.launch.worker import (
    Failure,
    leave,
    limit_threads,
    print_stacks_when_asked,
    run_as_rank,
    write_whole_lines,
)
from tinyexp.masking import masked
from tinyexp.process import Environment, die_with_parent, threads_per_rank

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def run_external(fn: Callable[[], Any]) -> list[Any]:
    """The result of `fn()` in this process, alone, where nothing has set RANK; it returns in this case only.

    As one rank of several the process ends here, with status 0 or that of the error, which is printed to stderr as
    `error: rank 1 of 2: ValueError: message`.

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
    print_stacks_when_asked()
    watch = NodeWatch(environment)
    outcome = run_as_rank(fn, environment.world.rank)
    watch.say_goodbye()
    if outcome.failure is None:
        leave(0)
    _explain(outcome.failure, environment)
    leave(outcome.failure.exit_status)


def _explain(failure: Failure, environment: Environment) -> None:
    line = f"error: {masked(failure.line(environment.world.rank, environment.world.size))}"
    if failure.type_name == Stopped.__name__:
        return  # the run itself has said where it stopped
    if failure.is_peer_loss:
        absent = _absent_ranks(environment)
        cause = f"{absent} did not come" if failure.is_timeout else "another rank failed"
        print(f"{line}\n(most likely because {cause})", file=sys.stderr, flush=True)
    else:
        print("\n\n".join(filter(None, [line, masked(failure.traceback)])), file=sys.stderr, flush=True)


def _absent_ranks(environment: Environment) -> str:
    """The ranks that have met no lost peer within ECHO_S, as the store of the group knows: `rank 1` or `ranks 1, 3`.

    The wait also lets the rank that failed first say why; torchrun ends this one meanwhile.
    """
    from torch.distributed import TCPStore

    def key(rank: int) -> str:
        return f"tinyexp/waited/{environment.attempt}/{rank}"

    world, address = environment.world, (environment.master_addr, environment.master_port)
    with suppress(RuntimeError):  # rank 0 served it, and has left
        timeout = timedelta(seconds=ECHO_S)
        store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timeout)
        store.set(key(world.rank), "")
        time.sleep(ECHO_S)
        absent = [str(rank) for rank in range(world.size) if not store.check([key(rank)])]
        if absent:
            return f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)}"
    return "a rank"
