"""Tables on the terminal, whose texts are shown as they are: nothing in them is markup, and nothing is cut off."""

from collections.abc import Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text


def plain_table(headers: Sequence[str], *, title: str = "", right: Sequence[str] = (), **options: Any) -> Table:
    """A table without rows; columns whose header is in `right` are set flush right. `options` are those of rich's Table.

    A word that is longer than its column goes on in the next line.
    """
    columns = [Column(Text(header), overflow="fold", justify="right" if header in right else "left") for header in headers]
    return Table(*columns, title=Text(title, "table.title") if title else None, **options)


def add_plain_row(table: Table, *cells: str | Text) -> None:
    """Add a row of as many cells as the table has columns."""
    assert len(cells) == len(table.columns)
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
