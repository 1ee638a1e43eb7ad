"""The command line as typed overrides of an experiment, in Hydra's grammar, with one message for all that is wrong."""

import difflib
import types
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as ParsedOverride
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tinyexp.errors import ConfigError
from tinyexp.experiment.base import TinyExp


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
        except OmegaConfBaseException:
            key, _, text = argument.partition("=")
            problems.append(f"{key}: got {text!r}, needs {_spoken(keys[key])}")
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
        raise ConfigError(f"{argument!r} is not of the form key=value; mode=help lists the keys")
    key, _, text = argument.partition("=")
    try:
        parsed = OverridesParser.create().parse_override(argument)
    except HydraException:
        if key.strip("+~") in keys:
            raise ConfigError(
                f"{key}: cannot read {text!r}; quote a value with = , # ~ spaces or accents: {quoted(key, text)}"
            ) from None
        raise ConfigError(_unknown(key, keys)) from None
    key = parsed.key_or_group
    if parsed.type is not OverrideType.CHANGE or key not in keys:
        raise ConfigError(_unknown(argument.partition("=")[0], keys))
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{key}: got {text!r}, a choice of values; a list is written {key}=[{text}], a text {quoted(key, text)}"
        )
    return key, _value(parsed, keys[key], key, text)


def _value(parsed: ParsedOverride, hint: Any, key: str, text: str) -> Any:
    value = parsed.value()
    if hint is not str:
        return value
    if text in ("None", "none"):
        raise ConfigError(f"{key}: got the word {text}; write {key}=null for none, or {quoted(key, text)} for that name")
    if value is None:
        return ""
    # Hydra reads an unquoted 1e-3 or true as a number or a truth value; a text key keeps what was written.
    return value if isinstance(value, str) else text


def quoted(key: str, text: str) -> str:
    """The argument as one shell word that gives exactly this text."""
    escaped = text.strip("\"'").replace("\\", "\\\\").replace('"', '\\"')
    return f"'{key}=\"{escaped}\"'"


def _unknown(key: str, keys: dict[str, Any]) -> str:
    bare = key.lstrip("+~")
    if bare in keys:
        return f"{key}: every key exists already; write {bare}=<value>"
    leaves: dict[str, list[str]] = {}
    for name in keys:
        leaves.setdefault(name.rpartition(".")[2], []).append(name)
    same_leaf = leaves.get(bare.rpartition(".")[2], [])
    near = difflib.get_close_matches(bare, keys, n=2, cutoff=0.6)
    near_leaf = [name for leaf in difflib.get_close_matches(bare.rpartition(".")[2], leaves, n=2) for name in leaves[leaf]]
    inside = [name for name in keys if name.startswith(f"{bare}.")]
    nearest = list(dict.fromkeys([*same_leaf, *near, *near_leaf, *inside]))[:3]
    return f"{key}: no such key; " + (f"nearest: {', '.join(nearest)}; " if nearest else "") + "mode=help lists all"


def _spoken(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if get_origin(hint) is list:
        return f"a list such as [1,2] of {names.get(get_args(hint)[0], 'values')}"
    if get_origin(hint) is types.UnionType:
        return " or ".join("null" if part is type(None) else names.get(part, str(part)) for part in get_args(hint))
    return names.get(hint, str(hint))
