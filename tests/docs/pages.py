"""The pages of the documentation as their reader sees them: links, headings, and what stands in code."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
FRONT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [ROOT / name for name in FRONT_PAGES] + sorted((ROOT / "docs").glob("*.md"))
BLOCKS = ("code_block", "fence")


class Page(NamedTuple):
    """What can be checked of one page."""

    links: list[str]  # targets of links and pictures
    anchors: set[str]  # of its headings, as code hosts make them
    code: list[str]  # each inline piece and each block, lines that end in a backslash joined
    mistakes: list[str]  # what is shown with the error it gives, which `code` has not


def read_page(path: Path) -> Page:
    tokens = [token for top in MarkdownIt().enable("table").parse(path.read_text(encoding="utf-8")) for token in flat(top)]
    links = [str(token.attrs[name]) for token in tokens for name in ("href", "src") if name in token.attrs]
    pieces = [token for token in tokens if token.type in ("code_inline", *BLOCKS)]
    wrong = set(map(id, blocks_of_errors(tokens) + tables_of_errors(tokens)))
    code, mistakes = (
        [piece.content.replace("\\\n", " ") for piece in pieces if (id(piece) in wrong) is which] for which in (False, True)
    )
    return Page(links, anchors_of(tokens), code, mistakes)


def blocks_of_errors(tokens: list[Token]) -> list[Token]:
    """Blocks that hold an error, or stand right above one that begins with it."""
    blocks = [(token, after) for token, after in pairwise([*tokens, tokens[0]]) if token.type in BLOCKS]
    return [
        token
        for token, after in blocks
        if re.search(r"^\s*error: ", token.content, re.MULTILINE)
        or (after.type in BLOCKS and after.content.startswith("error: "))
    ]


def tables_of_errors(tokens: list[Token]) -> list[Token]:
    """What stands in tables with a column of messages."""
    found, table = [], []
    for token in tokens:
        table = [] if token.type == "table_open" else [*table, token]
        if token.type == "table_close" and any("the message" in cell.content for cell in table[: last_of_head(table)]):
            found += table
    return found


def last_of_head(table: list[Token]) -> int:
    return next(place for place, token in enumerate(table) if token.type == "thead_close")


def flat(token: Token) -> list[Token]:
    return [token, *(inner for child in token.children or [] for inner in flat(child))]


def anchors_of(tokens: list[Token]) -> set[str]:
    """Lower case, without punctuation, spaces as hyphens; a heading that comes again gets a number."""
    seen: Counter[str] = Counter()
    anchors = set()
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            text = "".join(part.content for part in token.children or [])
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return anchors
