"""Every image of a data set read, hashed and decoded by several processes."""

import hashlib
import io
import multiprocessing
import os
import signal
import warnings
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tinyexp.data.decoding import FORMATS, UnreadableImage, decode_rgb
from tinyexp.data.file_bytes import ImageFiles
from tinyexp.errors import MachineError
from tinyexp.process import die_with_parent
from tinyexp.signals import held_back

CHUNK = 16  # images that a process takes at a time


@dataclass(frozen=True, slots=True)
class Finding:
    """What one image is."""

    position: int  # in the split
    size: int = 0  # in bytes
    sha256: str = ""  # of its bytes, in hexadecimal; "" where they cannot be read
    kind: str = ""  # format and mode by its content, and the extension where that says otherwise; "" where it cannot be decoded
    pixels: tuple[int, int] = (0, 0)  # width and height
    problem: str = ""  # why it cannot be read or decoded


def inspect(files: ImageFiles, *, processes: int, max_pixels: int) -> Generator[Finding, None, None]:
    """What each image is, in order. No process is left when the iteration ends, however it ends.

    Raises: MachineError if a process dies.
    """
    context = multiprocessing.get_context("fork")  # the list of files comes with the fork
    pool = ProcessPoolExecutor(processes, context, _start, (os.getpid(), files, max_pixels))
    try:
        with held_back(signal.SIGINT):  # Ctrl-C is not for the processes, from their fork on
            starts = range(0, len(files.targets), CHUNK)
            chunks = [pool.submit(_findings, range(start, min(start + CHUNK, len(files.targets)))) for start in starts]
        for chunk in chunks:
            yield from chunk.result()
    except BrokenProcessPool:
        raise MachineError("a process that reads images died; if memory ran out, use fewer --processes") from None
    finally:
        pool.shutdown(cancel_futures=True)


_files: ImageFiles  # of a process of the pool
_max_pixels: int


def _start(parent: int, files: ImageFiles, max_pixels: int) -> None:
    global _files, _max_pixels
    _files, _max_pixels = files, max_pixels
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    die_with_parent(parent)


def _findings(positions: Sequence[int]) -> list[Finding]:
    return [_finding(position) for position in positions]


def _finding(position: int) -> Finding:
    name = _files.name(position)
    try:
        data, _ = _files.read(position)
    except UnreadableImage as error:
        return Finding(position, problem=str(error).removeprefix(f"{name}: "))
    size, sha256 = len(data), hashlib.sha256(data).hexdigest()
    try:
        decode_rgb(data, path=name, max_pixels=_max_pixels)
    except UnreadableImage as error:
        return Finding(position, size, sha256, problem=str(error).removeprefix(f"{name}: "))
    kind, pixels = _described(data, Path(name).suffix.lower())
    return Finding(position, size, sha256, kind, pixels)


def _described(data: bytes, extension: str) -> tuple[str, tuple[int, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the decoder
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    named = Image.registered_extensions().get(extension)
    other_name = "" if named == image.format else f" named {extension}"
    return f"{image.format} {image.mode}{other_name}", image.size
