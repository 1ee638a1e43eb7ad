"""What a check says about this machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

OK, LIMITED, MISSING = "ok", "limited", "missing"
GB = 10**9


@dataclass(frozen=True)
class Options:
    """What the user asked to have looked at."""

    data_root: str
    output_root: str


@dataclass(frozen=True)
class Finding:
    """One row: what was looked at, what was found, whether that will do, and what to do about it."""

    check: str
    found: str
    verdict: str  # ok, limited or missing
    advice: str = ""


# name of the row -> what is found, its verdict and the advice
Check = Callable[[Options], tuple[str, str, str]]
Checks = Mapping[str, Check]
