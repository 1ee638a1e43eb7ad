"""What a run is, before it runs: a dataclass whose fields are the keys of the command line."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tinyexp.errors import ConfigError, MachineError
from tinyexp.launch.ray_resources import ANY_NODE, NodeGroup
from tinyexp.launch.ray_workers import RayCfg, check_resources, num_workers
from tinyexp.limits import MOST, Range, name_problem, nearest, path_problem, range_problems
from tinyexp.process import Environment, available_cores

RANGES = {
    "seed": Range(-(2**62), 2**62),  # torch takes 64 bits, and replicas count up from it
    "max_restarts": Range(0, MOST, "0 never starts again"),
}
MOST_RANKS_A_CORE = 32
LAUNCHERS = ("ray", "local", "mp")
PROGRESS = ("auto", "plain")
MODE_ALIASES = {"val": "eval"}


@dataclass
class TinyExp(ABC):
    """An experiment: subclass it, give every key a default, say in `run` what one rank does.

    Every process of the run builds the same instance again and calls `run`.
    """

    modes: ClassVar[tuple[str, ...]] = ("train",)  # besides help, which every experiment has

    mode: str = "train"  # what to run; val is accepted for eval
    launcher: str = "mp"  # ray: Ray starts the processes; local: this command does; mp: it is one rank of torchrun or by hand
    exp_name: str = ""  # names the run folder; empty: the module's name
    output_root: str = "./output"  # the run folder is output_root/exp_name
    help_section: str = ""  # with mode=help: the one section to show, run or a name such as ray_cfg; empty: all
    seed: int = 0  # of the run; replica r draws from seed + r
    max_restarts: int = 0  # new starts from the newest checkpoint after a lost, hanging or broken rank; torchrun has its own
    progress: str = "auto"  # on a terminal: auto draws a live display of mode=train, plain prints lines alone, as elsewhere
    ray_cfg: RayCfg = field(default_factory=RayCfg)

    def __post_init__(self) -> None:
        self.mode = MODE_ALIASES.get(self.mode, self.mode)
        self.exp_name = self.exp_name or type(self).__module__.rpartition(".")[2]

    @property
    def run_folder(self) -> Path:
        return Path(self.output_root).expanduser() / self.exp_name

    def num_processes(self) -> int | None:
        """Processes of the run, before any of them starts; None where a Ray cluster that is yet to be joined decides."""
        return Environment.read().world.size if self.launcher == "mp" else num_workers(self.ray_cfg)

    def node_group(self) -> NodeGroup:
        """The ranks that a launcher must not spread over nodes: none, unless a subclass says so."""
        return ANY_NODE

    def validate(self) -> None:
        """Raises: ConfigError that lists everything that cannot work here, before any process starts; MachineError where only
        the machine lacks something."""
        found = self.problems()
        if self.launcher == "ray" and self.starts_processes and not self.ray_cfg.problems():
            try:
                check_resources(self.ray_cfg)
            except MachineError as error:
                if not found:
                    raise
                found.append(str(error))
        if found:
            raise ConfigError("\n  ".join([f"{len(found)} problem{'s' if len(found) > 1 else ''} in the configuration:", *found]))

    def problems(self) -> list[str]:
        """One line a problem, with its dotted key. A subclass extends the list."""
        found = []
        choices = (("mode", self.mode, (*self.modes, "help")), ("launcher", self.launcher, LAUNCHERS))
        for key, value, allowed in (*choices, ("progress", self.progress, PROGRESS)):
            if value not in allowed:
                found.append(f"{key}={value!r}: allowed are {', '.join(allowed)}{nearest(value, allowed)}")
        if self.help_section and self.mode != "help":
            found.append(
                f"help_section={self.help_section}: only mode=help shows a section; add mode=help, or leave this key out"
            )
        if problem := name_problem("exp_name", self.exp_name):
            found.append(f"{problem}; the folder above it is output_root")
        if problem := path_problem("output_root", self.output_root):
            found.append(problem)
        found += range_problems("", self, RANGES)
        if self.max_restarts > 0 and self.launcher == "mp":
            found.append(
                f"max_restarts={self.max_restarts}: with launcher=mp something else starts the processes and has to start them "
                f"again, as torchrun --max-restarts={self.max_restarts} does; or set launcher=ray or launcher=local"
            )
        return found + (self.ray_cfg.problems() or self._crowd_problems())

    def _crowd_problems(self) -> list[str]:
        """More processes than a machine of this size could start without standing still."""
        joins_cluster = self.launcher == "ray" and os.environ.get("RAY_ADDRESS", "local") != "local"
        if self.launcher == "mp" or joins_cluster or not self.starts_processes:
            return []
        most = MOST_RANKS_A_CORE * available_cores()
        if (asked := self.num_processes() or 1) <= most:
            return []
        return [
            f"ray_cfg.ray_num_worker={asked}: launcher={self.launcher} would start {asked} processes on this machine, whose "
            f"{available_cores()} cores hold up to {most}; set a smaller number, or spread them over a cluster"
        ]

    def departures(self) -> list[str]:
        """Where this run departs from the published recipe that the experiment follows, one line each, for `mode=help`."""
        return []

    @property
    def starts_processes(self) -> bool:
        """Whether the mode runs at all; where it does not, `preview` is what it shows."""
        return True

    @property
    def owns_run_folder(self) -> bool:
        """Whether the mode continues or replaces what lies in the run folder, so that no other run may use it meanwhile."""
        return self.mode == "train"

    def needed_bytes(self) -> int:
        """What the run folder must have room for before the run starts."""
        return 0

    def preview(self) -> str:
        """The page of a mode that starts no process."""
        raise NotImplementedError

    @abstractmethod
    def run(self) -> Any:
        """What every process of the run does. Returns something picklable; the command shows what rank 0 returns."""

    def report(self, result: Any) -> None:  # noqa: B027 - an experiment may have nothing to show
        """Show what rank 0's `run` returned, once the run is over and its processes are gone."""
