"""A checkpoint as a file: written whole or not at all, read as data alone, checked byte for byte before it is used."""

import argparse
import contextlib
import os
import pathlib
import pickle
import shutil
import time
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tinyexp.errors import CheckpointError

PLAIN_CLASSES = [argparse.Namespace, pathlib.PosixPath, pathlib.WindowsPath]  # of the `args` in official files
ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # what files of torch begin with: those of today, and those before 1.6
FRAGMENT = "unfinished-{}.part"  # a file that is being written; torch refuses names that start with a dot


def save_checkpoint(checkpoint: Mapping[str, Any], path: Path, *, also: Path | None = None, previous: Path | None = None) -> None:
    """Write the file whole or not at all: a temporary file in the same folder, synced, then renamed.

    `also` becomes a second name of the new file, `previous` a name of the file that it replaces; both are hard links where the
    file system has them. One process calls it.
    Raises: CheckpointError with the reason; every earlier file is untouched then.
    """
    temporary = _temporary(path)
    try:
        try:
            torch.save(dict(checkpoint), temporary)
            _sync(temporary)
            if also is not None:
                _name_too(temporary, also)
            if previous is not None and path.exists():
                _name_too(path, previous)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot save the checkpoint {path}: {_reason(error, path, checkpoint)}; earlier checkpoints are untouched"
        ) from error


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint file as plain values on the CPU. Only data is read: no class but those named here is ever built.

    The checksum of every record is compared first, at about 0.8 ms a MB; official files of torch 1.5 and older have none.
    Raises: CheckpointError that names the file and why it cannot be read.
    """
    path = Path(path).expanduser()
    damage = damaged_record(path)
    if damage:
        raise CheckpointError(f"checkpoint {path.absolute()} is incomplete or corrupt: {damage}")
    return _load(path)


def peek(path: Path) -> dict[str, Any]:
    """The plain values of a checkpoint, its tensors left in the file. Nothing is verified.

    Raises: CheckpointError for a file that cannot be opened.
    """
    return _load(path, mmap=zipfile.is_zipfile(path))


def damaged_record(path: Path) -> str:
    """What is wrong with the bytes of a checkpoint; empty where every record has the checksum that was stored with it."""
    try:
        with open(path, "rb") as file:
            if file.read(len(ZIP)) != ZIP:
                return ""  # torch's format before 1.6, which `read_checkpoint` reads or refuses as it is
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            return f"the record {damaged} does not have its checksum" if damaged else ""
    except FileNotFoundError:
        return ""
    except Exception as error:  # what broken bytes raise depends on where they are, as below
        return (str(error) or type(error).__name__).splitlines()[0]


def no_checkpoint(path: Path) -> str:
    """Why a path is not that of a checkpoint, as far as a look at its first bytes tells; empty where it may be one."""
    if not path.exists():
        return f"no such file ({path.absolute()})"
    if not path.is_file():
        return f"{path.absolute()} is a folder; name a file in it" if path.is_dir() else f"{path.absolute()} is no regular file"
    try:
        return _foreign_start(path)
    except OSError as error:
        return f"{path.absolute()} cannot be read: {error.strerror}"


def _foreign_start(path: Path) -> str:
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        return f"{path.absolute()} is empty"
    return "" if start.startswith((ZIP, PICKLE)) else f"{path.absolute()} is no checkpoint: it starts with {start!r}"


def remove_fragments(folder: Path) -> list[str]:
    """Delete what writers that are gone left unfinished; returns the names. Only the owner of the folder may call it."""
    fragments = list(folder.glob(FRAGMENT.format("*")))
    for fragment in fragments:
        fragment.unlink(missing_ok=True)
    return [fragment.name for fragment in fragments]


def _load(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(PLAIN_CLASSES), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a foreign pickle, which is refused or read all the same
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path.absolute()} does not exist") from None
    except pickle.UnpicklingError as error:
        if foreign := _foreign_start(path):
            raise CheckpointError(f"{foreign}; a file of torch does not, or its beginning is damaged") from None
        reason = str(error).split("WeightsUnpickler error:")[-1].strip().splitlines()[0]
        raise CheckpointError(f"checkpoint {path.absolute()} was refused, it holds more than plain data: {reason}") from None
    except Exception as error:  # what broken bytes raise depends on where they are: OSError, EOFError, KeyError, TypeError, ...
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"checkpoint {path.absolute()} is incomplete or corrupt: {reason}") from None
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"checkpoint {path.absolute()} holds a {type(checkpoint).__name__}; a dictionary is needed")
    return checkpoint


def _temporary(path: Path) -> Path:
    return path.with_name(FRAGMENT.format(f"{os.getpid()}-{time.monotonic_ns()}"))


def _name_too(path: Path, name: Path) -> None:
    """Give a file a second name, at once and in place of what had that name."""
    temporary = _temporary(name)
    try:
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)
            _sync(temporary)
        os.replace(temporary, name)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception, path: Path, checkpoint: Mapping[str, Any]) -> str:
    """Why a file could not be written. torch says only that a write failed, so that as many bytes are asked for once more."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    probe = _temporary(path)
    try:
        with open(probe, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes(checkpoint))
    except OSError as cause:
        return cause.strerror or str(cause)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return str(error).splitlines()[0]


def num_bytes(values: Any) -> int:
    """Bytes of all tensors in nested plain values."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, Mapping):
        return sum(map(num_bytes, values.values()))
    return sum(map(num_bytes, values)) if isinstance(values, list | tuple) else 0
