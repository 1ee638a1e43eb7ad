"""The page of `mode=help` on a terminal: wrapped to its width, with an overview of the sections first."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.help import Section, closing, heading, help_page, sections
from tinyexp.experiment.overrides import Override

INDENT = 6


def show_help(
    exp_class: type[TinyExp],
    overrides: Sequence[Override],
    departures: Sequence[str],
    only: str = "",
    console: Console | None = None,
) -> None:
    """Print the page: all sections, or the one named. Raises: ConfigError where there is no such section."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        print(help_page(exp_class, overrides, departures, only))
        return
    chosen = sections(exp_class, only)
    if not only:
        _show_overview(console, exp_class, chosen)
    for section in chosen:
        _show_section(console, section)
    for title, lines in closing(overrides, departures):
        console.print(Text(f"\n{title}", "bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if not only:
        console.print(Text(f"\nOne section alone: mode=help help_section={chosen[-1].name}", "bold"))


def _show_overview(console: Console, exp_class: type[TinyExp], chosen: Sequence[Section]) -> None:
    for line in heading(exp_class):
        console.print(Text(line))
    table = Table.grid(padding=(0, 2, 0, 0))
    for section in chosen:
        table.add_row(
            Text(f"  {section.name}", "cyan"),
            Text(f"{len(section.keys):>2} keys"),
            Text(section.title.partition(". ")[0].rstrip(".")),
        )
    console.print("", table)


def _show_section(console: Console, section: Section) -> None:
    """A line for each key with its default and type, and its meaning below."""
    console.print(Text.assemble("\n", (section.name, "bold"), f"  {section.title}"))
    for path, kind, default, meaning in section.keys:
        console.print(Padding(Text.assemble((path, "cyan"), " = ", default, (f"  {kind}", "dim")), (0, 0, 0, 2)))
        console.print(Padding(Text(meaning), (0, 0, 0, INDENT)))
