"""Where each sample of WebDataset shards lies: read once from the tar headers, then kept in a file."""

import errno
import hashlib
import io
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from tinyexp.data.file_bytes import Stamp
from tinyexp.data.shard_members import Sample, read_samples
from tinyexp.data.whole_file import write_whole
from tinyexp.errors import DataError

INDEX_NAME = ".tinyexp-index.npz"
VERSION = 1
READERS = 16  # threads, which wait for a slow disk together
MOST_PROBLEMS = 10  # of broken shards in one message

log = logging.getLogger("tinyexp")


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one split, in the order of its shards and of the members in each."""

    shards: list[str]  # file names, sorted
    stamps: list[Stamp]  # of each shard when its headers were read
    members: bytes  # the name of each sample's image, a zero byte between two
    places: numpy.ndarray  # (samples, 4) int64: number of the shard, offset and size in bytes, class number
    starts: numpy.ndarray = field(init=False, repr=False)  # (samples + 1,) int64: where in `members` each name starts

    def __post_init__(self) -> None:
        # Strings in a list would be counted as they are used, and so copied by every worker that a rank forks.
        ends = numpy.flatnonzero(numpy.frombuffer(self.members, numpy.uint8) == 0)
        object.__setattr__(self, "starts", numpy.concatenate([[0], ends + 1, [len(self.members) + 1]]).astype(numpy.int64))

    def member(self, position: int) -> str:
        """The name of the sample's image in its shard."""
        return self.members[self.starts[position] : self.starts[position + 1] - 1].decode("utf-8", "surrogateescape")

    def member_names(self, positions: range) -> bytes:
        """The names of neighbours, with a zero byte after each."""
        end = self.starts[positions.stop] - 1
        return self.members[self.starts[positions.start] : end] + b"\0" if positions else b""


def shard_names(folder: Path) -> list[str]:
    """The `*.tar` files of a split, sorted; hidden ones are no shards. Raises: OSError."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".tar") and not entry.name.startswith("."))


def load_index(folder: Path) -> ShardIndex:
    """The index of a split's shards: from the file that an earlier call has written, if size and time of every shard are still
    those of it; else from the headers of all shards, of which images are skipped. Without shards it is empty.

    The file lies beside the shards, or where they cannot be written to in the user's cache folder.

    Raises: DataError with one line for each shard that cannot be used.
    """
    try:
        shards = shard_names(folder)
        stamps = [_stamp(folder / name) for name in shards]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}; give this user access") from error
    if not shards:
        return ShardIndex([], [], b"", numpy.empty((0, 4), numpy.int64))
    for path in _index_paths(folder):
        if (index := _read_index(path, shards, stamps)) is not None:
            return index
    index = _read_headers(folder, shards, stamps)
    _write_index(folder, index)
    return index


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_headers(folder: Path, shards: list[str], stamps: list[Stamp]) -> ShardIndex:
    log.info("%s: reading the headers of all %d *.tar once, to know where each image lies", folder, len(shards))
    with ThreadPoolExecutor(READERS) as readers:
        found = list(readers.map(_samples_or_problem, [folder / name for name in shards]))
    problems = [each for each in found if isinstance(each, str)]
    if problems:
        more = [f"and {len(problems) - MOST_PROBLEMS} more shards"] if len(problems) > MOST_PROBLEMS else []
        raise DataError("\n".join([*problems[:MOST_PROBLEMS], *more]))
    members, places = [], []
    for number, samples in enumerate(found):
        assert not isinstance(samples, str)
        members += [sample.member for sample in samples]
        places += [(number, sample.offset, sample.size, sample.target) for sample in samples]
    names = "\0".join(members).encode("utf-8", "surrogateescape")
    return ShardIndex(shards, stamps, names, numpy.array(places, numpy.int64).reshape(-1, 4))


def _samples_or_problem(path: Path) -> Sequence[Sample] | str:
    try:
        return read_samples(path)
    except (DataError, OSError) as error:
        return str(error) if isinstance(error, DataError) else f"{path}: the shard cannot be read: {error.strerror or error}"


def _index_paths(folder: Path) -> list[Path]:
    """Beside the shards, and in the user's cache folder where there is one: a user whom the machine does not know has none."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.npz"
    return [folder / INDEX_NAME, *([Path(caches, "tinyexp", name)] if os.path.isabs(caches) else [])]


def _read_index(path: Path, shards: list[str], stamps: list[Stamp]) -> ShardIndex | None:
    """None where there is no file, or it is not of these shards as they are now."""
    try:
        with open(path, "rb") as stream, numpy.load(stream, allow_pickle=False) as file:
            if json.loads(file["about"].tobytes()) != _about(shards, stamps):
                return None
            places, names = file["places"], file["members"].tobytes()
    except FileNotFoundError:
        return None
    except Exception as error:  # what a damaged file raises depends on where the damage is
        log.warning("%s cannot be used and is made anew: %s", path, error)
        return None
    return ShardIndex(shards, stamps, names, places)


def _about(shards: list[str], stamps: list[Stamp]) -> dict:
    """What an index must agree with, as JSON gives it back."""
    return {"version": VERSION, "shards": [[name, *stamp] for name, stamp in zip(shards, stamps, strict=True)]}


def _write_index(folder: Path, index: ShardIndex) -> None:
    content = io.BytesIO()
    numpy.savez(
        content,
        about=numpy.frombuffer(json.dumps(_about(index.shards, index.stamps)).encode(), numpy.uint8),
        places=index.places,
        members=numpy.frombuffer(index.members, numpy.uint8),
    )
    beside, *in_cache = _index_paths(folder)
    try:
        write_whole(beside, content.getvalue())
        return
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        reasons = [f"{folder}: {error.strerror}"]
    for path in in_cache:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content.getvalue())
            log.info("%s cannot be written to; the index of its shards lies in %s", folder, path)
            return
        except OSError as error:
            reasons.append(f"{path}: {error.strerror}")
    reasons += [] if in_cache else ["this user has no home folder; set XDG_CACHE_HOME"]
    log.warning("the index of the shards cannot be kept, so that every process reads all headers: %s", "; ".join(reasons))
