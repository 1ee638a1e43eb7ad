"""What the values of keys may be: ranges of numbers, names of files, paths. Each problem is one line with its dotted key."""

import argparse
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LONGEST_NAME = 200  # bytes of a file's name: file systems take 255, and temporary names put some before it
LONGEST_PATH = 4000  # bytes; the kernel takes 4096, with what a run puts behind it
MOST = 10**9  # of what is only counted
LONGEST_WAIT_S = 10**7  # seconds, 115 days; timers of threads and of process groups overflow far above it


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`; nearest: train` for `trian`, to be put behind what is allowed; empty where nothing is near."""
    near = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; nearest: {near[0]}" if near else ""


class Range(NamedTuple):
    """From `least` to `most`, both allowed. NaN is in no range, and neither is an infinity where `most` is finite."""

    least: float
    most: float
    meaning: str = ""  # of special values, as "0 is off"
    special: float | None = None  # a value outside the range that means something

    def holds(self, value: float) -> bool:
        """Whether the value is allowed."""
        return value == self.special or self.least <= value <= self.most

    def __str__(self) -> str:
        allowed = f"a number from {_shown(self.least)} to {_shown(self.most)} is needed"
        return f"{allowed}; {self.meaning}" if self.meaning else allowed


SECONDS = Range(0.01, LONGEST_WAIT_S)


def range_problems(section: str, config: object, ranges: Mapping[str, Range]) -> Iterator[str]:
    """The fields of a configuration that are outside their range; null is allowed where the type allows it."""
    for name, allowed in ranges.items():
        value = getattr(config, name)
        if value is not None and not allowed.holds(value):
            yield f"{section}{name}={value}: {allowed}"


def name_problem(key: str, name: str) -> str:
    """Why the text cannot be the name of a file or folder in a folder of ours; empty where it can."""
    if Path(name).name != name or name in ("", "..") or name != name.strip() or name.startswith(("~", ".", "-")):
        return f"{key}={name!r}: a plain name is needed, without / and not starting with ~ . - or a space"
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"{key}={name[:20]}...: the name has {len(os.fsencode(name))} bytes; up to {LONGEST_NAME} are allowed"
    return ""


def path_problem(key: str, path: str) -> str:
    """Why no file or folder can have this path on any machine like this one; empty where one can. ~ is a home folder."""
    try:
        home_path(path)
    except argparse.ArgumentTypeError as error:
        return f"{key}={error}"
    return ""


def home_path(text: str) -> Path:
    """The path that the text names, ~ being a home folder: the `type` of a command's argument. Raises: ArgumentTypeError."""
    try:
        full = Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        what = f"{text!r}: there is no user {user}; ~ alone is your home folder, and ./{user} a folder of that name"
        raise argparse.ArgumentTypeError(what) from None
    longest = max((len(os.fsencode(part)) for part in full.parts), default=0)
    if longest > 255 or len(os.fsencode(full)) > LONGEST_PATH:
        what = f"{text[:40]}...: the path is too long; up to {LONGEST_PATH} bytes are allowed, and 255 between two slashes"
        raise argparse.ArgumentTypeError(what)
    return full


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
