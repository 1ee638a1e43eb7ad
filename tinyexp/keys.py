"""The dotted keys of a configuration."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key of a nested configuration with its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
