import io

import pytest
from rich.console import Console
from rich.text import Text

from tinyexp.observability.table import add_plain_row, plain_table

PATH = "/a/path/that/is/longer/than/any/terminal/has/columns/" * 3


def drawn(table, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("width", [40, 80, 300])
def test_texts_are_shown_as_they_are_and_to_their_end_at_any_width(width):
    table = plain_table(("[red]", "b [/b]"), title="exp [old] [/b]", right=("[red]",), box=None)
    add_plain_row(table, "[x]", f"{PATH}[final] a [/b].jpg")
    add_plain_row(table, Text("styled", "bold"), "")
    text = drawn(table, width)
    assert max(map(len, text.splitlines())) <= width
    whole = "".join(text.split())
    for part in ("exp [old] [/b]", "[red]", "b [/b]", "[x]", f"{PATH}[final] a [/b].jpg", "styled"):
        assert "".join(part.split()) in whole
    assert "…" not in text


def test_a_row_has_as_many_cells_as_there_are_columns():
    with pytest.raises(AssertionError):
        add_plain_row(plain_table(("a", "b")), "one")
