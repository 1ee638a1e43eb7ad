"""Faults of single files: cut, flipped, and every operation of a save failing or being the last one of its process."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.trial import Row
from tinyexp.errors import CheckpointError
from tinyexp.training import checkpoint_file
from tinyexp.training.checkpoint import CheckpointCfg, newest_good, step_file
from tinyexp.training.checkpoint_file import read_checkpoint, remove_fragments, save_checkpoint

PARTS = 64
OPERATIONS = ("link", "replace", "fsync", "open")  # of `os`, which a save goes through, beside torch.save itself


def truncations(source: Path, folder: Path) -> Row:
    """Every checkpoint of a run cut at every 1/64 of its length: refused by name, and the newest other one found instead."""
    row = Row("file cut at every 1/64", note="last, previous, best and two step files of a finished run")
    names = [path.name for path in source.glob("*.ckpt")]
    for name in names:
        for part in range(PARTS):
            _copies(source, folder)
            whole = (folder / name).read_bytes()
            (folder / name).write_bytes(whole[: len(whole) * part // PARTS])
            row.trials += 1
            _judge(row, folder, name, source)
    return row


def bit_flips(source: Path, folder: Path, chance: random.Random, *, trials: int) -> Row:
    """One bit of a checkpoint flipped: refused and replaced by another one, or without any effect on what is read."""
    row = Row("one bit flipped", note="the last checkpoint of a finished run; a bit between two records changes nothing")
    for _ in range(trials):
        _copies(source, folder)
        data = bytearray((folder / "last.ckpt").read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / "last.ckpt").write_bytes(data)
        row.trials += 1
        _judge(row, folder, "last.ckpt", source)
    return row


def failing_operations(folder: Path) -> Row:
    """ENOSPC, EIO, and the end of the process at every operation of a save: an announced checkpoint is always found."""
    row = Row("ENOSPC, EIO, exit at every operation", note="of a save that replaces a file and names both")
    for failure in (errno.ENOSPC, errno.EIO, None):
        number = 0
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _save(folder, 1)
            done = _in_child(lambda number=number, failure=failure: _save_with_fault(folder, number, failure))
            if done == 0:
                break  # the save has fewer operations than that
            row.trials += 1
            number += 1
            remove_fragments(folder)
            row.left_over += bool(list(folder.glob("*.part")))
            try:
                path = newest_good(folder, CheckpointCfg())
                step = read_checkpoint(path)["tinyexp"]["step"] if path else 0
                row.wrong += bool(path) and not torch.equal(read_checkpoint(path)["weight"], torch.full((1000,), float(step)))
                row.lost += step < 1
            except CheckpointError:
                row.lost += 1
    return row


def _judge(row: Row, folder: Path, damaged: str, source: Path) -> None:
    """Whether the damaged file is refused or harmless, and another one is found."""
    try:
        row.wrong += not same_values(read_checkpoint(folder / damaged), read_checkpoint(source / damaged))
    except CheckpointError as error:
        row.wrong += damaged not in str(error)
    try:
        path = newest_good(folder, CheckpointCfg())
        row.lost += path is None
        row.wrong += path is not None and not same_values(read_checkpoint(path), read_checkpoint(source / path.name))
    except CheckpointError:
        row.lost += 1


def same_values(one: Any, other: Any) -> bool:
    """Whether two nested plain values are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_values, one, other))
    return one == other


def _copies(source: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in source.glob("*.ckpt"):
        shutil.copyfile(path, folder / path.name)


def _save(folder: Path, step: int) -> None:
    checkpoint = {"weight": torch.full((1000,), float(step)), "tinyexp": {"step": step}}
    save_checkpoint(checkpoint, folder / "last.ckpt", also=step_file(folder, step), previous=folder / "previous.ckpt")


def _save_with_fault(folder: Path, number: int, failure: int | None) -> None:
    """Save with a fault at the operation of that number; status 0 where the save has no such operation."""
    left = [number]

    def faulty(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                if failure is None:
                    os._exit(2)
                raise OSError(failure, os.strerror(failure))
            return original(*arguments, **options)

        return operation

    for name in OPERATIONS:
        setattr(checkpoint_file.os, name, faulty(getattr(os, name)))
    torch.save = faulty(torch.save)
    try:
        _save(folder, 2)
    except CheckpointError:
        os._exit(1)
    os._exit(0 if left[0] >= 0 else 3)


def _in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
