"""`python -m tinyexp doctor`: one table of what this machine has, what works on it, and what to do about the rest."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.text import Text

from tinyexp.doctor.capabilities import can_run, capabilities, first_commands, obstacles
from tinyexp.doctor.examination import DEADLINE_S, examine
from tinyexp.doctor.finding import LIMITED, MISSING, OK, Finding, Options
from tinyexp.errors import ConfigError, MachineError
from tinyexp.limits import home_path
from tinyexp.observability.table import add_plain_row, plain_table

NAME_WIDTH = 16  # columns; the text beside it needs the rest of 80
COLOURS = {OK: "green", LIMITED: "yellow", MISSING: "red"}
ANSWERS = {OK: "yes", LIMITED: "yes, but", MISSING: "no"}
DEFAULT_DATA_ROOT = "./data/imagenet/"  # of dataloader_cfg.data_root, where IMAGENET_HOME is not set


def main(arguments: Sequence[str], *, deadline_s: float = DEADLINE_S) -> int:
    """The exit status: 0 where a run with tp=2 can train here, else that of MachineError."""
    found = _parse(arguments)
    with Console(stderr=True).status(f"looking at this machine, for at most {deadline_s:g} s"):
        options = Options(data_root=str(found.data_root), output_root=str(found.output_root))
        findings = examine(options, deadline_s=deadline_s)
    status = 0 if can_run(findings) else MachineError.exit_status
    if found.json:
        print(as_json(findings, status), flush=True)
    else:
        show(findings)
    return status


def as_json(findings: Sequence[Finding], status: int) -> str:
    """Everything that the table shows, for a program."""
    return json.dumps(
        {
            "can_run": status == 0,
            "exit_status": status,
            "findings": [asdict(finding) for finding in findings],
            "works": [asdict(each) for each in capabilities(findings)],
            "first_commands": first_commands(findings),
        },
        indent=2,
        allow_nan=False,
    )


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the table: what was found and what to do about it, then what works."""
    console = console or Console()
    headers = ("this machine", "", "found, and what to do about it")
    table = plain_table(headers, box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].max_width = NAME_WIDTH
    for each in findings:
        advice = f"\n-> {each.advice}" if each.advice else ""
        add_plain_row(table, each.check, Text(each.verdict, COLOURS[each.verdict]), each.found + advice)
    table.add_section()
    add_plain_row(table, Text("works here", "bold"), "", Text("why not, or what limits it", "bold"))
    table.add_section()
    for each in capabilities(findings):
        add_plain_row(table, each.what, Text(ANSWERS[each.verdict], COLOURS[each.verdict]), each.because)
    console.print(table)
    commands = first_commands(findings)
    closing = ["To start with:", *(f"    {command}" for command in commands)] if commands else [cannot_run(findings)]
    console.print(Text("\n".join(closing)), soft_wrap=True)


def cannot_run(findings: Sequence[Finding]) -> str:
    """The checks that keep the main job from running, in a line."""
    return f"No run can train here before this is mended: {', '.join(obstacles(findings))}"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tinyexp doctor", description=(__doc__ or "").partition(": ")[2], exit_on_error=False
    )
    data_root = os.environ.get("IMAGENET_HOME") or DEFAULT_DATA_ROOT
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    help_text = f"the folder with train and val; default IMAGENET_HOME, here {data_root}"
    parser.add_argument("--data-root", type=home_path, default=data_root, metavar="PATH", help=help_text)
    parser.add_argument(
        "--output-root", type=home_path, default="./output", metavar="PATH", help="where a run would write; default ./output"
    )
    try:
        found, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; allowed are --json, --data-root PATH and --output-root PATH") from None
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]!r}; allowed are --json, --data-root PATH and --output-root PATH")
    return found
