"""The command line as typed overrides of an experiment, in Hydra's grammar, with one message for all that is wrong."""

import difflib
import shlex
import types
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as ParsedOverride
from hydra.core.override_parser.types import OverrideType, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tinyexp.errors import ConfigError
from tinyexp.experiment.base import TinyExp

LONGEST_TEXT = 4096  # characters of a value, as many as a path may have
LONGEST_SHOWN = 120  # characters of a value in a message
QUOTES = "\"'"


@dataclass(frozen=True)
class Override:
    """One key that the user set."""

    path: str
    default: Any
    value: Any


def compose(exp_class: type[TinyExp], arguments: Sequence[str]) -> tuple[dict[str, Any], list[Override]]:
    """The experiment's configuration as plain values with the arguments applied, and what they changed.

    Raises: ConfigError that lists every argument that is misspelt, unknown or of the wrong type.
    """
    config = OmegaConf.structured(exp_class)
    keys = key_types(exp_class)
    problems: list[str] = []
    overrides: list[Override] = []
    for argument in arguments:
        try:
            key, value = _parse(argument, keys)
            default = OmegaConf.select(config, key)
            OmegaConf.update(config, key, value)
            overrides.append(Override(key, default, OmegaConf.select(config, key)))
        except ConfigError as error:
            problems.append(str(error))
        except (OmegaConfBaseException, OverflowError):
            key, _, text = argument.partition("=")
            problems.append(_misfit(key.strip(), text, keys))
    if problems:
        raise ConfigError("\n  ".join(["the command line does not fit the experiment:", *problems]))
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, overrides


def build(exp_class: type[TinyExp], plain: dict[str, Any]) -> TinyExp:
    """The experiment instance of a plain configuration; every rank builds the same one."""
    experiment = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(exp_class), plain))
    assert isinstance(experiment, TinyExp)
    return experiment


def key_types(exp_class: type) -> dict[str, Any]:
    """Every dotted key of an experiment and the type of its value, in the order of the fields."""
    found: dict[str, Any] = {}
    hints = get_type_hints(exp_class)
    for field in fields(exp_class):
        hint = hints[field.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            found.update({f"{field.name}.{name}": value for name, value in key_types(hint).items()})
        else:
            found[field.name] = hint
    return found


def _parse(argument: str, keys: dict[str, Any]) -> tuple[str, Any]:
    """Key and value of one argument. Raises: ConfigError that says how to write it."""
    if argument.startswith("-") or "=" not in argument:
        raise ConfigError(f"{shown(argument)} is not of the form key=value; mode=help lists the keys")
    key, _, text = argument.partition("=")
    if not key.strip():
        raise ConfigError(f"{shown(argument)} has no key before its =; write key=value, mode=help lists the keys")
    if key.strip("+~ ") in keys:
        _refuse_never_meant(key, text)
    parsed = _parsed(argument, key, text, keys)
    key = parsed.key_or_group
    if parsed.type is not OverrideType.CHANGE or parsed.package is not None or key not in keys:
        raise ConfigError(_unknown(argument.partition("=")[0], keys))
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{key}: got {shown(text)}, a choice of values; a list is written {key}=[{text}], a text {quoted(key, text)}"
        )
    return key, _value(parsed, keys[key], key, text)


def _refuse_never_meant(key: str, text: str) -> None:
    """Raises: ConfigError for what Hydra or OmegaConf would take for something else than its letters, or nobody means."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"{key}: the value has {len(text):,} characters; up to {LONGEST_TEXT:,} are allowed")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ConfigError(
            f"{key}: got {shown(text)}, which holds a control character or bytes that are no UTF-8; write it without"
        )
    if "${" in text:
        raise ConfigError(
            f"{key}: got {shown(text)}, and ${{...}} is not filled in; write the value itself. Your shell fills in "
            f'variables between double quotes: {key}="$HOME/images"'
        )
    if text.strip("\"' ") == "???":
        raise ConfigError(f"{key}: got ???, which stands for a value that is missing; write the value")


def _parsed(argument: str, key: str, text: str, keys: dict[str, Any]) -> ParsedOverride:
    try:
        return OverridesParser.create().parse_override(argument)
    except (HydraException, RecursionError):
        bare = key.strip("+~ ")
        if bare in keys:
            raise ConfigError(
                f"{key}: cannot read {shown(text)}; quote a value with = , # ~ spaces or accents: {quoted(bare, text)}"
            ) from None
        raise ConfigError(_unknown(key, keys)) from None


def _value(parsed: ParsedOverride, hint: Any, key: str, text: str) -> Any:
    value = parsed.value()
    if hint is not str:
        if not _is_kind(value, hint):
            raise ConfigError(_misfit(key, text, {key: hint}))
        return int(value) if hint is int and isinstance(value, float) and value.is_integer() else value
    text = text.strip()
    if text.lower() == "none":
        raise ConfigError(f"{key}: got the word {text}; write {key}=null for none, or {quoted(key, text)} for that name")
    if value is None:
        return ""
    # Hydra reads an unquoted 1e-3 or true as a number or a truth value; a text key keeps what was written.
    return value if isinstance(value, str) else text


def quoted(key: str, text: str) -> str:
    """The argument as one shell word that gives exactly this text, without the quotes that stand around it."""
    return shlex.quote(f"{key}={in_quotes(text.strip(QUOTES))}")


def in_quotes(text: str) -> str:
    """The text in quotes of Hydra's grammar, which reads it as it is. A shell needs it quoted once more."""
    return QuotedString(text, Quote.double).with_quotes()


def shown(text: str) -> str:
    """The text between quotes on one line, shortened in the middle where it is long, nothing in it that steers a terminal."""
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN // 2]} ... {text[-LONGEST_SHOWN // 2 :]}")


def _is_kind(value: Any, hint: Any) -> bool:
    """Whether the value was written as what it is to be: true is no number, and 2 no truth value."""
    if isinstance(value, list):
        return get_origin(hint) is list and all(_is_kind(each, get_args(hint)[0]) for each in value)
    allowed = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    if isinstance(value, bool):
        return bool in allowed
    return not (bool in allowed and isinstance(value, int | float) and value not in (0, 1))


def _misfit(key: str, text: str, keys: dict[str, Any]) -> str:
    return f"{key}: got {shown(text)}, needs {_spoken(keys[key])}"


def _unknown(key: str, keys: dict[str, Any]) -> str:
    bare = key.strip("+~ ")
    if bare in keys:
        return f"{key}: every key exists already; write {bare}=<value>"
    bare = bare[:LONGEST_SHOWN]
    leaves: dict[str, list[str]] = {}
    for name in keys:
        leaves.setdefault(name.rpartition(".")[2], []).append(name)
    same_leaf = leaves.get(bare.rpartition(".")[2], [])
    near = difflib.get_close_matches(bare, keys, n=2, cutoff=0.6)
    near_leaf = [name for leaf in difflib.get_close_matches(bare.rpartition(".")[2], leaves, n=2) for name in leaves[leaf]]
    inside = [name for name in keys if name.startswith(f"{bare}.")]
    nearest = list(dict.fromkeys([*same_leaf, *near, *near_leaf, *inside]))[:3]
    named = key if key.isprintable() and len(key) <= LONGEST_SHOWN else shown(key)
    return f"{named}: no such key; " + (f"nearest: {', '.join(nearest)}; " if nearest else "") + "mode=help lists all"


def _spoken(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if get_origin(hint) is list:
        return f"a list such as [1,2] of {names.get(get_args(hint)[0], 'values')}"
    if get_origin(hint) is types.UnionType:
        return " or ".join("null" if part is type(None) else names.get(part, str(part)) for part in get_args(hint))
    return names.get(hint, str(hint))
