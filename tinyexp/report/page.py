"""The page of a run as one HTML file that asks nothing of anywhere else: styles, script and pictures are inside."""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from tinyexp.observability.log import replace_file
from tinyexp.report.charts import FRAME, Chart
from tinyexp.report.script import SCRIPT
from tinyexp.report.style import STYLE
from tinyexp.report.template import TEMPLATE


@dataclass(frozen=True)
class Tile:
    """A number worth a glance."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading each; `numbers` are the columns that are set flush right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    folded: bool = False  # shown when asked for


@dataclass(frozen=True)
class Picture:
    """An image inside the page."""

    source: str  # a data: URL
    described: str  # for who cannot see it
    caption: str = ""
    wide: bool = False  # takes a row of its own


@dataclass(frozen=True)
class Sample:
    """An image of the set and what the model made of it."""

    file: str
    true_class: str
    answers: Sequence[tuple[str, float]]  # class and probability, the best first
    pictures: Sequence[Picture]

    @property
    def is_right(self) -> bool:
        return self.answers[0][0] == self.true_class


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading. Empty parts are left out."""

    title: str
    text: Sequence[str] = ()  # paragraphs
    charts: Sequence[Chart] = ()
    samples: Sequence[Sample] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()  # a list
    facts: Mapping[str, str] = field(default_factory=dict)
    code: str = ""  # to be copied


@dataclass(frozen=True)
class Page:
    """All that the page says."""

    title: str
    status: str  # finished, running or stopped
    status_text: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    written: str  # when, and by which version


def write_page(page: Page, path: Path) -> Path:
    """Write the page whole or not at all; returns its path."""
    replace_file(path, render(page).encode("utf-8", "replace"))
    return path


def render(page: Page) -> str:
    """The page as HTML. Every value is escaped, and the page forbids itself everything that is not written in it."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.from_string(TEMPLATE).render(page=page, frame=FRAME, style=STYLE, script=SCRIPT, policy=policy)


def picture_url(image: Image.Image) -> str:
    """The image inside a URL: as a JPEG, which for a photograph is a fraction of a PNG."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


def png_url(path: Path) -> str:
    """A PNG file inside a URL."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
