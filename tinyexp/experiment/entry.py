"""From a command line to a finished run: the only place that knows experiments and launchers."""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tinyexp.errors import ConfigError, Stopped, TinyExpError
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.help_screen import show_help
from tinyexp.experiment.overrides import Override, build, compose
from tinyexp.experiment.run_folder import owned
from tinyexp.experiment.run_id import new_run
from tinyexp.launch.external import run_external
from tinyexp.launch.local import run_local
from tinyexp.launch.ray_workers import run_ray
from tinyexp.launch.worker import Failure
from tinyexp.masking import masked
from tinyexp.observability.rank_log import log_to_console, rank_logging
from tinyexp.observability.terminal import live_display
from tinyexp.process import Environment
from tinyexp.signals import leave_when_interrupted
from tinyexp.streams import end_of_output, lost_output, take_output

# What a rank spends seconds on importing; Ray's workers do it while Ray itself is still starting.
PRELOADED = ("torch", "timm", "torch.distributed.tensor.parallel", "torch._dynamo")


def store_and_run_exp(exp_class: type[TinyExp], arguments: Sequence[str] | None = None) -> None:
    """Run an experiment by the command line, and end this process with the run's exit status.

    A class that `python -m` made part of `__main__` is replaced by its importable twin, so that every process finds it.
    """
    leave_when_interrupted()
    take_output()
    log_to_console()
    status = run_command(importable_twin(exp_class), sys.argv[1:] if arguments is None else arguments)
    if (error := lost_output()) and not isinstance(error, BrokenPipeError):  # whoever closes a pipe knows it
        print(f"warning: stdout did not take all that was printed: {error.strerror}", file=sys.stderr, flush=True)
    sys.exit(status)


def run_command(exp_class: type[TinyExp], arguments: Sequence[str]) -> int:
    """The exit status of the run. Problems that a user can mend are printed as one message, without a traceback.

    What nobody expects, with its traceback, has the status that it has in a run of several ranks.
    """
    speaks = True
    try:
        environment = Environment.read()
        speaks = environment.local.rank == 0 or not _ranks_share_a_command()
        plain, overrides = compose(exp_class, arguments)
        _choose_launcher(plain, overrides, environment)
        experiment = build(exp_class, plain)
        if experiment.mode == "help":
            with end_of_output():
                show_help(exp_class, overrides, experiment.departures(), experiment.help_section)
            return 0
        experiment.validate()
        if not experiment.starts_processes:
            with end_of_output():
                print(experiment.preview())
            return 0
        _launch(experiment, partial(run_rank, exp_class.__module__, exp_class.__qualname__, plain))
        return 0
    except Stopped as error:
        return error.exit_status  # the run itself has said where it stopped
    except TinyExpError as error:
        if speaks:
            print(masked(f"error: {error}"), file=sys.stderr, flush=True)
        return error.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 130
    except Exception as error:
        failure = Failure.of(error)
        told = f"error: {failure.type_name}: {failure.message}\n\n{failure.traceback}"
        print(masked(told), file=sys.stderr, end="", flush=True)
        return failure.exit_status


def run_rank(module: str, name: str, plain: dict[str, Any]) -> Any:
    """What each process does: find the class, build the same experiment, run it. It logs as one rank meanwhile."""
    take_output()
    experiment = build(getattr(importlib.import_module(module), name), plain)
    with rank_logging(Environment.read().world, experiment.run_folder if experiment.owns_run_folder else None):
        return experiment.run()


def run_external_rank(rank: Callable[[], Any], experiment: TinyExp) -> None:
    """The same where no driver of ours waits for the result: rank 0 owns the run folder and shows the result."""
    if Environment.read().world.rank:
        rank()
        return
    with _owned_run_folder(experiment), _display(experiment):
        result = rank()
    experiment.report(result)


def importable_twin(exp_class: type[TinyExp]) -> type[TinyExp]:
    """The same class under the name by which another process can import it."""
    if exp_class.__module__ != "__main__":
        return exp_class
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else Path(inspect.getfile(exp_class)).stem
    return getattr(importlib.import_module(name), exp_class.__qualname__)


def _ranks_share_a_command() -> bool:
    """Whether the ranks of this machine have one command, whose mistakes its first rank tells. By hand each has its own."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _choose_launcher(plain: dict[str, Any], overrides: Sequence[Override], environment: Environment) -> None:
    """A process that torchrun or RANK/WORLD_SIZE made one of several is a rank, and starts no processes of its own."""
    if environment.world.size == 1 or plain["launcher"] == "mp":
        return
    if any(override.path == "launcher" for override in overrides):
        raise ConfigError(
            f"launcher={plain['launcher']} would start processes, but WORLD_SIZE={environment.world.size} says that this one "
            "is a rank already; set launcher=mp or start the command once, without torchrun"
        )
    plain["launcher"] = "mp"


def _launch(experiment: TinyExp, rank: Callable[[], Any]) -> None:
    """Run on the processes of the experiment's launcher, and show what rank 0 returned."""
    if experiment.launcher == "mp":
        run_external(partial(run_external_rank, rank, experiment))
        return
    restarts = experiment.max_restarts
    with _owned_run_folder(experiment), _display(experiment), new_run():
        if experiment.launcher == "ray":
            group = experiment.node_group()
            results = run_ray(rank, experiment.ray_cfg, preload=PRELOADED, group=group, max_restarts=restarts)
        else:
            results = run_local(rank, experiment.num_processes() or 1, max_restarts=restarts)
    experiment.report(results[0])


def _display(experiment: TinyExp) -> contextlib.AbstractContextManager[None]:
    if experiment.progress != "auto" or not experiment.owns_run_folder:
        return contextlib.nullcontext()
    return live_display(experiment.run_folder, experiment.exp_name)


def _owned_run_folder(experiment: TinyExp) -> contextlib.AbstractContextManager[None]:
    if not experiment.owns_run_folder:
        return contextlib.nullcontext()
    return owned(experiment.run_folder, needed_bytes=experiment.needed_bytes())
