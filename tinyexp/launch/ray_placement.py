"""Where Ray puts the ranks of a run: actors in a placement group, placed anew where Ray has yet to notice that a node is lost."""

import logging
import time
from contextlib import suppress
from typing import Any

from tinyexp.errors import MachineError
from tinyexp.launch.ray_actor import Place, RankActor
from tinyexp.launch.ray_resources import Bundle, NodeGroup, shortage
from tinyexp.launch.rendezvous import LOOPBACK
from tinyexp.launch.supervise import POLL_S
from tinyexp.signals import StopRequest

UNNOTICED_S = 90.0  # Ray may take that long to notice that a node is lost (65 s by the defaults of Ray 2.60)

logger = logging.getLogger("tinyexp")


class NodeLost(Exception):
    """Ray has noticed the loss of a node while it placed the workers. It does not move what it had placed there (Ray 2.60)."""


def place(
    bundle: Bundle, num_workers: int, *, group: NodeGroup, strategy: str, timeout_s: float, stop: StopRequest
) -> "Placement":
    """Actors that answer, in a placement that its caller removes.

    Raises: MachineError if the cluster has not placed the workers after `timeout_s`, or cannot start them.
    """
    from ray.exceptions import RayError

    begin = time.monotonic()
    has_warned = False
    while True:
        placement = Placement(bundle, num_workers, workers_per_bundle=group.size or num_workers)
        try:
            if not placement.reserve(strategy, begin + timeout_s, stop):
                raise MachineError(shortage(bundle, num_workers, group, strategy, timeout_s))
            placement.start(stop)
            return placement
        except (RayError, NodeLost) as error:
            placement.remove()
            if time.monotonic() > begin + min(timeout_s, UNNOTICED_S):
                raise MachineError(f"Ray could not start the workers: {error}") from error
            if not has_warned:
                logger.warning("Ray could not start the workers, and is asked again until it can: %s", str(error).splitlines()[0])
            has_warned = True
        except BaseException:
            placement.remove()
            raise
        time.sleep(POLL_S)


class Placement:
    """One actor for each rank, in one placement group, whose bundles hold the ranks that must share a node."""

    def __init__(self, bundle: Bundle, num_workers: int, *, workers_per_bundle: int) -> None:
        import ray

        self._bundle = bundle
        self._num_workers = num_workers
        self._workers_per_bundle = workers_per_bundle
        self._group: Any = None
        self._home = ray.get_runtime_context().get_node_id()  # node of this process
        self._addresses = _addresses()
        self.actors: list[Any] = []  # in rank order once they are started
        self.places: list[Place] = []  # likewise
        self.store_host = ""  # where rank 0 listens
        self.store_port = 0

    def reserve(self, strategy: str, until: float, stop: StopRequest) -> bool:
        """Whether the cluster has set the resources aside before `until`, by time.monotonic."""
        from ray.util.placement_group import placement_group

        bundle = self._bundle.resources(self._workers_per_bundle)
        self._group = placement_group([bundle] * (self._num_workers // self._workers_per_bundle), strategy=strategy)
        while not self._group.wait(POLL_S):
            self._check(stop)
            if time.monotonic() > until:
                return False
        return True

    def start(self, stop: StopRequest) -> None:
        """Start the actors, order them, and have the first one listen.

        Their order: this node first, the ranks of a node next to each other, by their GPUs.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class = ray.remote(RankActor)
        for index in range(self._num_workers):
            place = index // self._workers_per_bundle
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
            settings = actor_class.options(num_cpus=self._bundle.cpus, num_gpus=self._bundle.gpus, scheduling_strategy=bundle)
            self.actors.append(settings.remote())
        places = self._answers([actor.place.remote() for actor in self.actors], stop)
        self._addresses = _addresses()

        def order(index: int) -> tuple[bool, str, str, list[tuple[int, str]]]:
            place = places[index]
            devices = [(len(device), device) for device in place.devices]  # 10 after 9
            return place.node_id != self._home, self._addresses[place.node_id], place.node_id, devices

        ranks = sorted(range(self._num_workers), key=order)
        self.actors = [self.actors[index] for index in ranks]
        self.places = [places[index] for index in ranks]
        self.store_host = LOOPBACK if self.is_on_one_node else self._addresses[self.places[0].node_id]
        (self.store_port,) = self._answers([self.actors[0].listen.remote(self.store_host)], stop)

    @property
    def is_on_one_node(self) -> bool:
        """Whether all ranks are on the node of this process."""
        return all(place.node_id == self._home for place in self.places)

    @property
    def address_of_driver(self) -> str:
        """The address of this process for its ranks."""
        return LOOPBACK if self.is_on_one_node else self._addresses[self._home]

    def is_here(self, rank: int) -> bool:
        """Whether a rank is on the node of this process."""
        return self.places[rank].node_id == self._home

    def node(self, rank: int) -> str:
        """`on node gpu7 (10.0.0.7)`; empty for this one."""
        place = self.places[rank]
        return "" if self.is_here(rank) else f"on node {place.host} ({self._addresses[place.node_id]})"

    def remove(self) -> None:
        """Kill the actors and give their resources back."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self.actors:
            with suppress(Exception):  # Ray itself may be what has failed
                ray.kill(actor)
        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)

    def _answers(self, references: list[Any], stop: StopRequest) -> list[Any]:
        import ray

        waiting = references
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_S)
            self._check(stop)
        return ray.get(references)

    def _check(self, stop: StopRequest) -> None:
        stop.raise_if_asked()
        if lost := self._addresses.keys() - _addresses().keys():
            raise NodeLost(f"node {', '.join(sorted(self._addresses[node] for node in lost))} of the cluster was lost meanwhile")


def _addresses() -> dict[str, str]:
    """Of every node that Ray takes to be alive, by its id: the address by which the others know it.

    Not an actor's own view, which is the interface of the default route, whichever one the cluster uses (Ray 2.60).
    """
    import ray

    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
