"""How the commands of this room read a number, and how they end."""

import argparse
import contextlib
import sys
from collections.abc import Iterator

from tinyexp.errors import TinyExpError


@contextlib.contextmanager
def one_message(*, interrupted: str) -> Iterator[None]:
    """Let an error end the command with its message and exit status, and Ctrl-C with a line that says what that leaves."""
    try:
        yield
    except TinyExpError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_status) from None
    except KeyboardInterrupt:
        print(f"interrupted; {interrupted}", file=sys.stderr)
        raise SystemExit(130) from None


def positive(text: str) -> int:
    """The `type` of an argument that is a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too small or no whole number; use 1 or more")
    return int(text)
