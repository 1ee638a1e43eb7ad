"""The page of `mode=help`: every key with its type, default and meaning, and what the user changed."""

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, get_type_hints

from omegaconf import OmegaConf

from tinyexp.errors import ConfigError
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import Override
from tinyexp.limits import nearest
from tinyexp.masking import masked_values

OWN = "run"  # names the section of the experiment's own keys


class Key(NamedTuple):
    """One key as the page shows it."""

    path: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """The experiment's own keys, or those of one configuration."""

    name: str
    title: str
    keys: tuple[Key, ...]


def sections(exp_class: type[TinyExp], only: str = "") -> list[Section]:
    """All sections in the order of the fields, or the one that is asked for. Raises: ConfigError where there is none such."""
    defaults = OmegaConf.to_container(OmegaConf.structured(exp_class))
    assert isinstance(defaults, dict)
    hints = get_type_hints(exp_class)
    nested = [field.name for field in fields(exp_class) if is_dataclass(hints[field.name])]
    found = [_section(OWN, exp_class, defaults), *(_section(name, hints[name], defaults[name]) for name in nested)]
    if not only:
        return found
    chosen = [section for section in found if section.name == only]
    if not chosen:
        names = [section.name for section in found]
        raise ConfigError(f"help_section={only!r}: allowed are {', '.join(names)}{nearest(only, names)}")
    return chosen


def help_page(exp_class: type[TinyExp], overrides: Sequence[Override], departures: Sequence[str] = (), only: str = "") -> str:
    """The page as plain text, one line a key: what a pipe or a file gets. `help_screen` is for terminals."""
    lines = [*heading(exp_class), ""]
    for section in sections(exp_class, only):
        lines.append(f"{section.name}: {section.title}")
        widths = [max((len(key[column]) for key in section.keys), default=0) for column in range(3)]
        for path, kind, default, meaning in section.keys:
            lines.append(f"  {path:{widths[0]}}  {kind:{widths[1]}}  {default:{widths[2]}}  {meaning}".rstrip())
        lines.append("")
    for title, told in closing(overrides, departures):
        lines += [title, *(f"  {line}" for line in told), ""]
    return "\n".join(lines[:-1])


def heading(exp_class: type[TinyExp]) -> list[str]:
    """What the experiment is, which modes it has, and where its sections are told alone."""
    return [
        inspect.getdoc(exp_class) or exp_class.__name__,
        f"Modes: {', '.join((*exp_class.modes, 'help'))}",
        "Keys are set as key=value. One section alone: mode=help help_section=<name>",
        "DeiT is facebookresearch/deit @ 7e160fe4; a source behind a default says where it comes from.",
    ]


def closing(overrides: Sequence[Override], departures: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """What this command line changes, and what that means for the recipe."""
    changed = [f"{override.path} = {masked_values(override.value)!r}  (default {override.default!r})" for override in overrides]
    if departures:
        yield "Departures of this run from the official recipe:", departures
    yield "Set on this command line:", changed or ["nothing"]


def _section(name: str, section: Any, defaults: Any) -> Section:
    title = "the experiment's own keys" if name == OWN else (inspect.getdoc(section) or "").splitlines()[0]
    hints, meanings, prefix = get_type_hints(section), comments(section), "" if name == OWN else f"{name}."
    keys = [
        Key(f"{prefix}{field.name}", _type_name(hints[field.name]), _shown(defaults[field.name]), meanings.get(field.name, ""))
        for field in fields(section)
        if not is_dataclass(hints[field.name])
    ]
    return Section(name, title, tuple(keys))


def comments(section: type) -> dict[str, str]:
    """The trailing comment of each field of a dataclass and of its bases, by field name."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if is_dataclass(base):
            found.update(_own_comments(base))
    return found


def _own_comments(section: type) -> dict[str, str]:
    source = inspect.getsource(section)
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(inspect.cleandoc("\n" + source)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: by_line[node.end_lineno or node.lineno]
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and (node.end_lineno or node.lineno) in by_line
    }


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("None", "null")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
