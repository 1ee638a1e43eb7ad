"""The page on the command line is true: every line of its tables is run."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tinyexp import errors
from tinyexp.errors import ConfigError
from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.entry import run_command
from tinyexp.experiment.overrides import compose

PAGE = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """The two cells of each line of the table with this heading of its second column."""
    table = PAGE.split(f"| {heading} |\n|---|---|\n")[1].split("\n\n")[0]
    return [(left.strip(" `"), right.strip(" `")) for left, right in re.findall(r"^\| (.+) \| (.+) \|$", table, re.MULTILINE)]


def test_the_tables_are_found():
    assert [len(rows(heading)) for heading in ("the run gets", "the message says", "what happened")] == [16, 10, 9]


@pytest.mark.parametrize(("typed", "value"), rows("the run gets"))
def test_a_value_is_what_the_page_says(typed, value):
    [argument] = shlex.split(typed)
    plain, _ = compose(VitTpExp, [argument])
    found: Any = plain
    for part in argument.partition("=")[0].split("."):
        found = found[part]
    assert repr(found) == repr(ast.literal_eval(value))


@pytest.mark.parametrize(("typed", "part"), rows("the message says"))
def test_a_refusal_says_what_the_page_says(typed, part):
    [argument] = shlex.split(typed)
    with pytest.raises(ConfigError) as caught:
        compose(VitTpExp, [argument])
    assert part in str(caught.value)


def test_the_example_of_an_error_is_what_is_printed(capsys):
    command, *lines = re.search(r"^    \$ (.+)\n((?:    .+\n)+)", PAGE, re.MULTILINE).group(1, 2)  # pyright: ignore[reportOptionalMemberAccess]
    arguments = [*command.split()[3:], "dataloader_cfg.fake_data=true"]
    assert run_command(DigitsDemo, arguments) == 2
    assert capsys.readouterr().err == "".join(line.removeprefix("    ") + "\n" for line in lines[0].splitlines())


def test_every_exit_status_of_an_error_is_on_the_page():
    told = {status for cell, _ in rows("what happened") for status in map(int, re.findall(r"\d+", cell))}
    own = {each.exit_status for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.TinyExpError)}
    assert own <= told
