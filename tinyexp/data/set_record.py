"""`dataset.json`: size and SHA-256 of every image of a data set, to compare it with later."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyexp.data.whole_file import write_whole
from tinyexp.errors import DataError

VERSION = 1


@dataclass
class SetRecord:
    """What a data set held when it was checked."""

    data_format: str
    files: dict[str, list]  # name below the data root -> [bytes, SHA-256; "" where it could not be read]
    classes: dict[str, dict[str, int]] = field(default_factory=dict)  # split -> class -> images
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)  # split -> format and mode -> images
    unreadable: dict[str, str] = field(default_factory=dict)  # name -> reason


def write_record(path: Path, record: SetRecord) -> None:
    """Raises: DataError."""
    content = {"version": VERSION, **record.__dict__}
    try:
        write_whole(path, (json.dumps(content, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise DataError(
            f"the record cannot be written to {path}: {error.strerror}; choose another place with --record"
        ) from error


def read_record(path: Path) -> SetRecord:
    """Raises: DataError for a file that is no record."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != VERSION:
            raise ValueError("it is of another version")
        return SetRecord(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} is no record of a data set ({reason}); python -m tinyexp.data.check <data root> --record <path> writes one"
        ) from error


def require_format(then: SetRecord, data_format: str) -> None:
    """That a set read in this format can be compared with the record. Raises: DataError."""
    if data_format != then.data_format:
        raise DataError(f"the record is of a data set as {then.data_format}, and this one is read as {data_format}")


def differences(now: SetRecord, then: SetRecord) -> list[str]:
    """One line for each image that is not what it was: damaged or changed, missing, new. Both sets are of one format."""
    lines = [_change(name, now.files[name], before) for name, before in then.files.items() if name in now.files]
    lines += [f"{name}: missing" for name in then.files if name not in now.files]
    lines += [f"{name}: new" for name in now.files if name not in then.files]
    return [line for line in lines if line]


def _change(name: str, now: list, before: list) -> str:
    if now == before:
        return ""
    if not now[1]:
        return f"{name}: cannot be read any more"
    if now[0] == before[0]:
        return f"{name}: damaged or replaced: other bytes, of the same size"
    return f"{name}: changed: {before[0]:,} bytes then, {now[0]:,} now"
