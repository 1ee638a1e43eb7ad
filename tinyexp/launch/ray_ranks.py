"""The ranks of a run as actors of a connected Ray."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tinyexp.errors import MachineError
from tinyexp.launch.output import SILENCE_S, OutputServer
from tinyexp.launch.ray_actor import Job, Place, RankActor, carried_variables
from tinyexp.launch.ray_resources import Bundle, NodeGroup, shortage
from tinyexp.launch.rendezvous import LOOPBACK
from tinyexp.launch.supervise import POLL_S
from tinyexp.launch.worker import Failure, Outcome, unpack
from tinyexp.process import Axis, Environment
from tinyexp.signals import StopRequest

EXPLAIN_S = 1.0  # for Ray to say why a rank has ended, after its connection has
SAYS_NOTHING = "unexpectedly exits with a connection error"  # what Ray tells of every kill that it has not caused
END_S = 3.0  # for killed actors to be gone, and again for their last output to arrive


class RayRanks:
    """One actor for each rank, in one placement group, whose bundles hold the ranks that must share a node."""

    def __init__(
        self, fn: Callable[[], Any], bundle: Bundle, num_workers: int, *, group: NodeGroup, num_cpus: int, attempt: int
    ) -> None:
        assert num_workers % (group.size or 1) == 0, (num_workers, group)
        self._fn = fn
        self._bundle = bundle
        self._num_workers = num_workers
        self._node_group = group
        self._workers_per_bundle = group.size or num_workers
        self._num_cpus = num_cpus
        self._attempt = attempt
        self._group: Any = None
        self._actors: list[Any] = []  # in rank order once they are placed
        self._places: list[Place] = []  # likewise
        self._home = ""  # node of this process
        self._addresses: dict[str, str] = {}  # of every node, by which the others know it
        self._output: OutputServer | None = None
        self._running: dict[Any, int] = {}  # Ray's reference to a report that is yet to come -> rank

    @contextmanager
    def started(self, strategy: str, timeout_s: float, stop: StopRequest) -> Iterator[None]:
        """The function runs on all ranks while the block does, and nothing of it afterwards.

        Raises: MachineError if the cluster has not placed the workers after `timeout_s`, or cannot start them.
        """
        try:
            self._reserve(strategy, timeout_s, stop)
            self._place(stop)
            self._run(stop)
            yield
        finally:
            self._end()

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
        if self._output and self._output.is_connected(rank):  # before that it would meet handlers of Ray
            if self._is_here(rank):
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(self._places[rank].pid, number)
            else:
                self._output.send_signal(rank, number)

    def _reserve(self, strategy: str, timeout_s: float, stop: StopRequest) -> None:
        from ray.util.placement_group import placement_group

        bundle = self._bundle.resources(self._workers_per_bundle)
        self._group = placement_group([bundle] * (self._num_workers // self._workers_per_bundle), strategy=strategy)
        deadline = time.monotonic() + timeout_s
        while not self._group.wait(POLL_S):
            stop.raise_if_asked()
            if time.monotonic() > deadline:
                raise MachineError(shortage(self._bundle, self._num_workers, self._node_group, strategy, timeout_s))

    def _place(self, stop: StopRequest) -> None:
        """Start the actors and order them: this node first, the ranks of a node next to each other, by their GPUs."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._home = ray.get_runtime_context().get_node_id()
        actor_class = ray.remote(RankActor)
        for index in range(self._num_workers):
            place = index // self._workers_per_bundle
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
            settings = actor_class.options(num_cpus=self._bundle.cpus, num_gpus=self._bundle.gpus, scheduling_strategy=bundle)
            self._actors.append(settings.remote())
        places = _answers([actor.place.remote() for actor in self._actors], stop)
        # not each actor's own view, which is the interface of the default route, whichever one the cluster uses (Ray 2.60)
        self._addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}

        def order(index: int) -> tuple[bool, str, str, list[tuple[int, str]]]:
            place = places[index]
            devices = [(len(device), device) for device in place.devices]  # 10 after 9
            return place.node_id != self._home, self._addresses[place.node_id], place.node_id, devices

        ranks = sorted(range(self._num_workers), key=order)
        self._actors = [self._actors[index] for index in ranks]
        self._places = [places[index] for index in ranks]

    def _run(self, stop: StopRequest) -> None:
        import ray.cloudpickle

        all_here = all(self._is_here(rank) for rank in range(self._num_workers))
        store_host = LOOPBACK if all_here else self._addresses[self._places[0].node_id]
        (store_port,) = _answers([self._actors[0].listen.remote(store_host)], stop)
        self._output = OutputServer(LOOPBACK if all_here else self._addresses[self._home])
        function = ray.cloudpickle.dumps(self._fn)
        nodes = [place.node_id for place in self._places]
        for actor, environment in zip(self._actors, environments(nodes, store_host, store_port, self._attempt), strict=True):
            job = Job(
                function=function,
                environment=environment,
                folder=os.getcwd(),
                search_path=[entry or os.getcwd() for entry in sys.path],
                variables=carried_variables(),
                num_cpus=self._num_cpus,
                output_address=self._output.address,
                output_token=self._output.token,
            )
            self._running[actor.run.remote(job)] = environment.world.rank

    def _outcome(self, report: Any) -> Outcome:
        import ray
        from ray.exceptions import RayError

        rank = self._running.pop(report)
        try:
            return unpack(ray.get(report))
        except RayError as error:
            return Outcome(rank, failure=self._end_of(rank) or self._death(rank, str(error)))

    def _end_of(self, rank: int) -> Failure | None:
        """The failure of a rank that is there no more, as far as can be seen without Ray."""
        if self._is_here(rank):
            return None if _exists(self._places[rank].pid) else self._death(rank)
        end = self._output.ended.get(rank) if self._output else None
        if end is None or time.monotonic() < end.at + EXPLAIN_S:
            return None
        if end.was_silent:
            return Failure("", f"{self._node(rank)} is lost: the node, or its network, has not answered for {SILENCE_S} s")
        return self._death(rank)

    def _death(self, rank: int, explanation: str = "") -> Failure:
        _, _, detail = explanation.partition("Worker exit detail: ")
        detail, _, _ = (detail or explanation).partition(" Some common causes")
        detail = "" if SAYS_NOTHING in detail else detail
        cause = (
            "killed, possibly out of memory" if self._is_here(rank) else "killed, possibly out of memory, or its node was lost"
        )
        message = f"died without a report ({cause})" + (f"; Ray says: {detail}" if detail else "")
        return Failure("", " ".join(filter(None, [self._node(rank), message])))

    def _node(self, rank: int) -> str:
        """`on node gpu7 (10.0.0.7)`; empty for this one."""
        place = self._places[rank]
        return "" if self._is_here(rank) else f"on node {place.host} ({self._addresses[place.node_id]})"

    def _is_here(self, rank: int) -> bool:
        return self._places[rank].node_id == self._home

    def _end(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            with suppress(Exception):  # Ray itself may be what has failed
                ray.kill(actor)
        here = [place for place in self._places if place.node_id == self._home]
        deadline = time.monotonic() + END_S
        while any(_exists(place.pid) for place in here) and time.monotonic() < deadline:
            time.sleep(0.02)
        for place in here:
            with suppress(ProcessLookupError):  # nothing is left of it
                os.killpg(place.process_group, signal.SIGKILL)  # the loader workers of the rank
        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)
        if self._output:
            self._output.close(END_S)


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


def _answers(references: list[Any], stop: StopRequest) -> list[Any]:
    import ray
    from ray.exceptions import RayError

    waiting = references
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_S)
        stop.raise_if_asked()
    try:
        return ray.get(references)
    except RayError as error:
        raise MachineError(f"Ray could not start the workers: {error}") from error


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
