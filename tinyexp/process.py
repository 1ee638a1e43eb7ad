"""This process: its place among the processes of the run, and its random state.

Nobody else reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT.
"""

import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyexp.errors import MachineError

LARGEST_PORT = 65535
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Axis:
    """A position on one axis of the mesh: `rank` of `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, self


@dataclass(frozen=True)
class Environment:
    """What a launcher tells one process. torchrun, accelerate and our own launchers use the same variables."""

    world: Axis = Axis()
    local: Axis = Axis()
    master_addr: str = "127.0.0.1"
    master_port: int = 0  # 0: no rendezvous, the process is alone
    store_is_hosted: bool = False  # a launcher already serves the store at master_addr:master_port
    attempt: int = 0  # how often the launcher has started the group again
    owns_devices: bool = False  # the launcher shows this process its own devices only

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> "Environment":
        """The environment of this process; alone when neither RANK nor WORLD_SIZE is set.

        Raises: MachineError that lists every missing or contradictory variable at once.
        """
        variables = os.environ if variables is None else variables
        if not variables.get("RANK") and not variables.get("WORLD_SIZE"):
            return cls()
        problems: list[str] = []

        def number(name: str, default: int | None = None) -> int:
            text = variables.get(name) or ""
            if not text and default is not None:
                return default
            if not text.isdecimal():
                problems.append(f"{name} is {'not set' if not text else repr(text)}; a whole number >= 0 is needed")
                return 0
            return int(text)

        rank, size = number("RANK"), number("WORLD_SIZE")
        if not problems and rank >= size:
            problems.append(f"RANK={rank} is not below WORLD_SIZE={size}")
        local_rank = number("LOCAL_RANK", rank)
        local_size = number("LOCAL_WORLD_SIZE", max(size, local_rank + 1))
        port = number("MASTER_PORT") if size > 1 else number("MASTER_PORT", 0)
        if port > LARGEST_PORT:
            problems.append(f"MASTER_PORT={port} is no port; 1 to {LARGEST_PORT} are")
        if size > 1 and not variables.get("MASTER_ADDR"):
            problems.append("MASTER_ADDR is not set; the address of rank 0 is needed, 127.0.0.1 on one machine")
        if not problems and local_rank >= local_size:
            problems.append(f"LOCAL_RANK={local_rank} is not below LOCAL_WORLD_SIZE={local_size}")
        if problems:
            raise MachineError(
                "the variables of the process group do not fit:\n  "
                + "\n  ".join(problems)
                + "\nset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process, or start with torchrun"
            )
        return cls(
            world=Axis(rank, size),
            local=Axis(local_rank, local_size),
            master_addr=variables.get("MASTER_ADDR") or "127.0.0.1",
            master_port=port,
            store_is_hosted=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=number("TORCHELASTIC_RESTART_COUNT", 0),
            owns_devices=variables.get("TINYEXP_OWNS_DEVICES") == "True",
        )

    @property
    def spans_nodes(self) -> bool:
        """Whether there are ranks on other nodes than this one."""
        return self.local.size < self.world.size

    def holds_group(self, size: int) -> bool:
        """Whether this node has all ranks of the group of `size` consecutive ranks to which this one belongs."""
        first_on_node, first_of_group = self.world.rank - self.local.rank, self.world.rank // size * size
        return first_on_node <= first_of_group and first_of_group + size <= first_on_node + self.local.size

    def variables(self) -> dict[str, str]:
        """The variables from which `read` rebuilds this environment."""
        return {
            "RANK": str(self.world.rank),
            "WORLD_SIZE": str(self.world.size),
            "LOCAL_RANK": str(self.local.rank),
            "LOCAL_WORLD_SIZE": str(self.local.size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.store_is_hosted),
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "TINYEXP_OWNS_DEVICES": str(self.owns_devices),
        }


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks_on_node: int, *, cores: int | None = None) -> int:
    """Compute threads for each rank of a node: OMP_NUM_THREADS where the user set it, else an equal share of the cores.

    Two ranks on two cores take one thread each: OpenMP threads that outnumber the free cores spin and wait for each other.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, (cores or available_cores()) // ranks_on_node)


def host_name() -> str:
    return socket.gethostname()


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the kernel kill this process as soon as the one that started it ends, however that happens. Linux only.

    parent_pid: the parent as it was at the start; if it is gone by now, this process leaves at once. To the kernel the parent
    is the thread that started this process, and its end counts too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python's `random` of this process. timm's augmentation and mixup draw from all three."""
    import numpy
    import torch

    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    random.seed(seed)


def seed_cpu_generators(seed: int) -> None:
    """Seed the three generators with 64 bits, but leave those of a GPU, on which drop-path and dropout draw."""
    import numpy
    import torch

    torch.default_generator.manual_seed(seed)
    numpy.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)  # 64 bits would be an array, which takes 0.1 ms more
    random.seed(seed)


class RandomState:
    """The state of the three generators of this process at one moment, with `gpu` also that of its GPU, which waits for it."""

    def __init__(self, *, gpu: bool = False) -> None:
        import numpy
        import torch

        self._torch, self._numpy, self._python = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state() if gpu and torch.cuda.is_initialized() else None

    def restore(self) -> None:
        import numpy
        import torch

        torch.set_rng_state(self._torch)
        numpy.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self._cuda)

    def plain(self) -> dict[str, Any]:
        """The state as tensors and numbers, which a file read as data alone may hold."""
        import torch

        kind, words, *rest = self._numpy
        version, numbers, gauss = self._python
        assert not isinstance(words, str)
        assert (kind, version) == ("MT19937", 3)
        return {
            "torch": self._torch,
            "numpy": [torch.from_numpy(words.astype("int64")), *rest],
            "python": [torch.tensor(numbers), gauss],
            "cuda": self._cuda,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RandomState":
        """The state that `plain` described."""
        state = cls.__new__(cls)
        words, *rest = plain["numpy"]
        numbers, gauss = plain["python"]
        state._torch, state._cuda = plain["torch"], plain["cuda"]
        state._numpy = ("MT19937", words.numpy().astype("uint32"), *rest)
        state._python = (3, tuple(numbers.tolist()), gauss)
        return state


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Run a block that leaves the three random generators of this process as it found them."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


class RandomStreams:
    """Several replicas' random streams in one process, which takes up each where it left it."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._states: dict[int, RandomState] = {}

    @contextlib.contextmanager
    def stream(self, replica: int) -> Iterator[None]:
        """Draw from the stream of one replica within a block."""
        with preserve_random_state():
            if replica in self._states:
                self._states[replica].restore()
            else:
                seed_everything(self._seeds[replica])
            yield
            self._states[replica] = RandomState()
