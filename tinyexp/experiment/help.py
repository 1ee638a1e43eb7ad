"""The page of `mode=help`: every key with its type, default and meaning, and what the user changed."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import Override


def help_page(exp_class: type[TinyExp], overrides: Sequence[Override], departures: Sequence[str] = ()) -> str:
    """One section for the experiment's own keys and one for each nested configuration, then what this command line changes."""
    lines = [inspect.getdoc(exp_class) or exp_class.__name__, "", f"Modes: {', '.join((*exp_class.modes, 'help'))}", ""]
    defaults = OmegaConf.to_container(OmegaConf.structured(exp_class))
    lines += _section("", exp_class, defaults)
    hints = get_type_hints(exp_class)
    for field in fields(exp_class):
        if is_dataclass(hints[field.name]):
            assert isinstance(defaults, dict)
            lines += ["", *_section(field.name, hints[field.name], defaults[field.name])]
    lines += ["", "Set on this command line:"]
    changed = [f"  {override.path} = {masked(repr(override.value))}  (default {override.default!r})" for override in overrides]
    lines += changed or ["  nothing"]
    if departures:
        lines += ["", "Departures of this run from the official recipe:", *(f"  {line}" for line in departures)]
    return "\n".join(lines)


def masked(text: str) -> str:
    """The text with *** for the password of any URL in it."""
    return re.sub(r"(://[^/@\s:]*:)[^@\s]*@", r"\1***@", text)


def _section(name: str, section: Any, defaults: Any) -> Iterator[str]:
    title = (inspect.getdoc(section) or "").splitlines()[0] if name else "The experiment"
    yield f"{name or 'Run'}: {title}" if name else f"{title}:"
    hints, meanings = get_type_hints(section), comments(section)
    rows = [
        (f"{name}.{field.name}" if name else field.name, _type_name(hints[field.name]), _shown(defaults[field.name]), field.name)
        for field in fields(section)
        if not is_dataclass(hints[field.name])
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for key, kind, default, field_name in rows:
        columns = f"{key:{widths[0]}}  {kind:{widths[1]}}  {default:{widths[2]}}"
        yield f"  {columns}  {meanings.get(field_name, '')}".rstrip()


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
