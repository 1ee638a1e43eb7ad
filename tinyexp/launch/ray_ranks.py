"""The ranks of a run as actors of a connected Ray."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tinyexp.launch.output import SILENCE_S, OutputServer
from tinyexp.launch.ray_actor import Job, carried_variables
from tinyexp.launch.ray_placement import Placement
from tinyexp.launch.worker import Failure, Outcome, unpack
from tinyexp.process import Axis, Environment
from tinyexp.sessions import start_time

EXPLAIN_S = 1.0  # for Ray to say why a rank has ended, after its connection has
# what Ray tells of kills that are not its own
SAYS_NOTHING = ("unexpectedly exits with a connection error", "died unexpectedly", "is unavailable: ")
END_S = 3.0  # for killed actors to be gone, and again for their last output to arrive


@contextmanager
def running(fn: Callable[[], Any], placement: Placement, *, num_cpus: int, attempt: int) -> Iterator["RayRanks"]:
    """The function runs on all ranks while the block does, and nothing of it, nor the placement, afterwards."""
    ranks = RayRanks(placement, OutputServer(placement.address_of_driver))
    try:
        ranks.run(fn, num_cpus=num_cpus, attempt=attempt)
        yield ranks
    finally:
        ranks.end()


class RayRanks:
    """The ranks of one attempt of a run, in their placement."""

    def __init__(self, placement: Placement, output: OutputServer) -> None:
        self._placement = placement
        self._output = output
        self._running: dict[Any, int] = {}  # Ray's reference to a report that is yet to come -> rank

    def run(self, fn: Callable[[], Any], *, num_cpus: int, attempt: int) -> None:
        """Have every rank start. num_cpus: what each of them may use."""
        import ray.cloudpickle

        placement, function = self._placement, ray.cloudpickle.dumps(fn)
        nodes = [place.node_id for place in placement.places]
        each = environments(nodes, placement.store_host, placement.store_port, attempt)
        for actor, environment in zip(placement.actors, each, strict=True):
            job = Job(
                function=function,
                environment=environment,
                folder=os.getcwd(),
                search_path=[entry or os.getcwd() for entry in sys.path],
                variables=carried_variables(),
                num_cpus=num_cpus,
                output_address=self._output.address,
                output_token=self._output.token,
            )
            self._running[actor.run.remote(job)] = environment.world.rank

    def arrivals(self, timeout_s: float) -> list[Outcome]:
        """The outcomes that have come, after at most `timeout_s`; a dead rank is one."""
        import ray

        if ray.wait(list(self._running), num_returns=1, timeout=timeout_s)[0]:
            ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            return [self._outcome(report) for report in ready]
        # Ray itself learns of a death from a closed socket, which the loader workers of a killed rank hold open, and of the
        # loss of a node after a minute or so
        found = [(report, self._end_of(rank)) for report, rank in self._running.items()]
        return [Outcome(self._running.pop(report), failure=failure) for report, failure in found if failure]

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to the process of a rank, on whichever node it is."""
        if not self._output.is_connected(rank):
            return  # it would meet handlers of Ray
        if self._placement.is_here(rank):
            with suppress(ProcessLookupError):  # it has ended
                os.kill(self._placement.places[rank].pid, number)
        else:
            self._output.send_signal(rank, number)

    def end(self) -> None:
        """End all ranks and their loader workers, print what they have yet to say, and give the placement back."""
        self._placement.remove()
        here = [place for rank, place in enumerate(self._placement.places) if self._placement.is_here(rank)]
        deadline = time.monotonic() + END_S
        while any(_exists(place.pid) for place in here) and time.monotonic() < deadline:
            time.sleep(0.02)
        for place in here:
            with suppress(ProcessLookupError):  # nothing is left of it
                os.killpg(place.process_group, signal.SIGKILL)  # the loader workers of the rank
        self._output.close(END_S)

    def _outcome(self, report: Any) -> Outcome:
        import ray
        from ray.exceptions import RayError

        rank = self._running.pop(report)
        try:
            outcome = unpack(ray.get(report))
        except RayError as error:
            return Outcome(rank, failure=self._end_of(rank) or self._death(rank, str(error)))
        if outcome.failure:
            self.send_signal(rank, signal.SIGKILL)  # its process outlives the report, and ranks that wait for it must notice
        return outcome

    def _end_of(self, rank: int) -> Failure | None:
        """The failure of a rank that is there no more, as far as can be seen without Ray."""
        if self._placement.is_here(rank):
            return None if _exists(self._placement.places[rank].pid) else self._death(rank)
        end = self._output.ended.get(rank)
        if end is None or time.monotonic() < end.at + EXPLAIN_S:
            return None
        if end.was_silent:
            return Failure(
                "", f"{self._placement.node(rank)} is lost: the node, or its network, has not answered for {SILENCE_S} s"
            )
        return self._death(rank)

    def _death(self, rank: int, explanation: str = "") -> Failure:
        _, _, detail = explanation.partition("Worker exit detail: ")
        detail, _, _ = (detail or explanation).partition(" Some common causes")
        detail = "" if any(phrase in detail for phrase in SAYS_NOTHING) else detail
        cause = "killed, possibly out of memory" + ("" if self._placement.is_here(rank) else ", or its node was lost")
        message = f"died without a report ({cause})" + (f"; Ray says: {detail}" if detail else "")
        return Failure("", " ".join(filter(None, [self._placement.node(rank), message])))


def environments(nodes: Sequence[str], master_addr: str, master_port: int, attempt: int) -> list[Environment]:
    """The environment of every rank, from the node of every rank."""
    sizes, seen = Counter(nodes), Counter[str]()
    found = []
    for rank, node in enumerate(nodes):
        world, local = Axis(rank, len(nodes)), Axis(seen[node], sizes[node])
        seen[node] += 1
        address = master_addr, master_port
        found.append(Environment(world, local, *address, store_is_hosted=True, attempt=attempt, owns_devices=True))
    return found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # one that has ended keeps its number until Ray, which has started it, asks for its status: seconds on a busy machine
    return sys.platform != "linux" or start_time(pid) != ""
