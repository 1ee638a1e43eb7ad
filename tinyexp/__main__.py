"""`python -m tinyexp`: what can be done beside running an experiment. Importing this file loads nothing heavy."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tinyexp.errors import ConfigError, TinyExpError
from tinyexp.streams import end_of_output, take_output


class Subcommand(NamedTuple):
    """Where a subcommand lives: `module.function(arguments)` returns its exit status."""

    module: str
    function: str
    arguments: str  # as the usage shows them
    meaning: str


SUBCOMMANDS = {
    "doctor": Subcommand(
        "tinyexp.doctor.command", "main", "[--json]", "what works on this machine, and what to do about the rest"
    ),
    "report": Subcommand("tinyexp.report.write", "main", "<run folder>", "report.html, the page of a run, from its folder"),
}
DATA_COMMANDS = {
    "tinyexp.data.digits": ("[root]", "write the handwritten digits as a data set"),
    "tinyexp.data.check": ("<data root>", "read every image of a data set, and record what it holds"),
    "tinyexp.data.shards": ("pack <data root> <out>", "pack class folders into WebDataset shards"),
}
EXPERIMENTS = {
    "tinyexp.examples.digits_demo": "a small DeiT on handwritten digits, two CPU cores, minutes",
    "tinyexp.examples.vit_tp_exp": "DeiT on ImageNet: train, eval, bench, verify, plan",
    "tinyexp.examples.mlp_tp_exp": "tensor parallelism in one page",
}


def main(arguments: Sequence[str]) -> int:
    """The exit status. Problems that a user can mend are printed as one message, without a traceback."""
    take_output()
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(usage())
            return 0
        name, *rest = arguments
        if name not in SUBCOMMANDS:
            raise ConfigError(_unknown(name))
        subcommand = SUBCOMMANDS[name]
        return getattr(importlib.import_module(subcommand.module), subcommand.function)(rest)
    except TinyExpError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 130


def usage() -> str:
    """What can be run, one line each."""
    commands = [(f"python -m tinyexp {name} {each.arguments}", each.meaning) for name, each in SUBCOMMANDS.items()]
    commands += [(f"python -m {module} {given}", meaning) for module, (given, meaning) in DATA_COMMANDS.items()]
    experiments = [(f"python -m {module} [key=value ...]", meaning) for module, meaning in EXPERIMENTS.items()]
    width = max(len(command) for command, _ in commands + experiments)
    return "\n".join(
        [
            "Commands:",
            *(f"  {command:{width}}  {meaning}" for command, meaning in commands),
            "Experiments; mode=help lists the keys of each:",
            *(f"  {command:{width}}  {meaning}" for command, meaning in experiments),
        ]
    )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, SUBCOMMANDS, n=1, cutoff=0.4)
    nearest = f"; nearest: {near[0]}" if near else ""
    return (
        f"no such command: {name!r}; allowed are {', '.join(SUBCOMMANDS)}{nearest}. "
        "An experiment is run by its module, as python -m tinyexp.examples.digits_demo"
    )


if __name__ == "__main__":
    with end_of_output():
        sys.exit(main(sys.argv[1:]))
