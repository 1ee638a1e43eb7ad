"""What a run is, before it runs: a dataclass whose fields are the keys of the command line."""

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tinyexp.errors import ConfigError, MachineError
from tinyexp.launch.ray_resources import ANY_NODE, NodeGroup
from tinyexp.launch.ray_workers import RayCfg, check_resources, num_workers
from tinyexp.process import Environment

LAUNCHERS = ("ray", "local", "mp")
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
    seed: int = 0  # of the run; replica r draws from seed + r
    max_restarts: int = 0  # new starts from the newest checkpoint after a lost, hanging or broken rank; torchrun has its own
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
        if self.launcher == "ray" and self.starts_processes:
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
        for key, value, allowed in (("mode", self.mode, (*self.modes, "help")), ("launcher", self.launcher, LAUNCHERS)):
            if value not in allowed:
                near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.0)[0]
                found.append(f"{key}={value!r}: allowed are {', '.join(allowed)}; nearest: {near}")
        if Path(self.exp_name).name != self.exp_name or self.exp_name in (".", ".."):
            found.append(f"exp_name={self.exp_name!r}: a plain name is needed; the folder above it is output_root")
        if self.max_restarts < 0:
            found.append(f"max_restarts={self.max_restarts}: a number >= 0 is needed, 0 never starts again")
        if self.max_restarts > 0 and self.launcher == "mp":
            found.append(
                f"max_restarts={self.max_restarts}: with launcher=mp something else starts the processes and has to start them "
                f"again, as torchrun --max-restarts={self.max_restarts} does; or set launcher=ray or launcher=local"
            )
        return found + self.ray_cfg.problems()

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
