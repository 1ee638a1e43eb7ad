"""The command that repeats a run, and the keys in which the run differs from its experiment's defaults."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import in_quotes, key_types
from tinyexp.masking import masked_values
from tinyexp.process import Environment

PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")  # texts that Hydra's grammar reads as they are
WORDS = {"null", "none"}  # which it, or this project, reads as something else than that text
GIVES_DEFAULTS = ("IMAGENET_HOME",)  # environment variables from which keys have their defaults
NOT_REPEATED = ("resume_from",)  # of a training, which would be continued instead


def changed_keys(experiment: TinyExp) -> dict[str, tuple[Any, Any]]:
    """Each dotted key whose value is not the default of the experiment: its value and that default.

    A default that an environment variable gave counts as a value, because another shell may not have the variable.
    """
    own, defaults = asdict(experiment), _defaults(type(experiment))
    pairs = {key: (_at(own, key), _at(defaults, key)) for key in key_types(type(experiment))}
    return {key: (value, default) for key, (value, default) in pairs.items() if value != default}


def command_words(experiment: TinyExp) -> list[str]:
    """The words of a command that repeats the run from its start; `shlex.join` makes them a line for a shell.

    Where something else than this project started the processes, it is written as torchrun does it. Secrets in URLs are masked.
    """
    program, keys = _program(type(experiment).__module__), changed_keys(experiment)
    words = ["python", *program]
    environment = Environment.read()
    if experiment.launcher == "mp" and environment.world.size > 1:
        keys.pop("launcher", None)
        words = ["torchrun", *_torchrun_options(environment), *program]
    if experiment.mode == "train":
        keys = {key: pair for key, pair in keys.items() if key not in NOT_REPEATED}
    return words + [argument(key, masked_values(value)) for key, (value, _) in keys.items()]


def argument(key: str, value: Any) -> str:
    """`key=value` in Hydra's grammar, so that exactly this value is read. A shell needs it quoted once more."""
    return f"{key}={_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(in_quotes(each) if isinstance(each, str) else _written(each) for each in value)}]"
    if not isinstance(value, str):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return in_quotes(value)


def _program(module: str) -> list[str]:
    """How Python is told to run a module: by its name, or by its path where it is a script, whose folder no other command knows.

    In a worker of Ray, which does not know how the command was started, a module outside any package counts as a script.
    """
    spec, path = getattr(sys.modules["__main__"], "__spec__", None), getattr(sys.modules[module], "__file__", None)
    if "." in module or path is None or (spec is not None and spec.name == module):
        return ["-m", module]
    return [os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path]


def _torchrun_options(environment: Environment) -> list[str]:
    num_nodes = environment.world.size // environment.local.size
    per_node = f"--nproc-per-node={environment.local.size}"
    if num_nodes == 1:
        return ["--standalone", per_node]
    return [f"--nnodes={num_nodes}", per_node, "--rdzv-backend=c10d", f"--rdzv-endpoint={environment.master_addr}:29500"]


def _defaults(exp_class: type[TinyExp]) -> dict[str, Any]:
    given = {name: os.environ.pop(name) for name in GIVES_DEFAULTS if name in os.environ}
    try:
        return asdict(exp_class())
    finally:
        os.environ.update(given)


def _at(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value
