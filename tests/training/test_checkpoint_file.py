"""Cases A11 and A19 and the fault matrix, as far as they concern one file."""

import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tinyexp.errors import CheckpointError
from tinyexp.training import checkpoint_file
from tinyexp.training.checkpoint import CheckpointCfg, newest_good, step_file
from tinyexp.training.checkpoint_file import damaged_record, read_checkpoint, remove_fragments, save_checkpoint

SMALL = {"model": {"weight": torch.arange(1000.0)}, "tinyexp": {"step": 1}}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def at_step(step: int) -> dict:
    return {"model": {"weight": torch.full((1000,), float(step))}, "tinyexp": {"step": step}}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.ckpt does not exist"):
        read_checkpoint(tmp_path / "gone.ckpt")


def test_every_truncation_is_noticed_and_named(tmp_path):
    save_checkpoint(SMALL, tmp_path / "whole.ckpt")
    whole = (tmp_path / "whole.ckpt").read_bytes()
    for part in range(64):
        (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) * part // 64])
        with pytest.raises(CheckpointError, match=r"cut\.ckpt is incomplete or corrupt|cut\.ckpt was refused"):
            read_checkpoint(tmp_path / "cut.ckpt")


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    save_checkpoint(SMALL, tmp_path / "whole.ckpt")
    whole, noticed = (tmp_path / "whole.ckpt").read_bytes(), 0
    places = random.Random(0)
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[places.randrange(len(flipped))] ^= 1 << places.randrange(8)
        (tmp_path / "flipped.ckpt").write_bytes(flipped)
        try:
            found = read_checkpoint(tmp_path / "flipped.ckpt")
        except CheckpointError:
            noticed += 1
        else:  # in the alignment between records, or in a date
            assert torch.equal(found["model"]["weight"], SMALL["model"]["weight"])
            assert found["tinyexp"] == SMALL["tinyexp"]
    assert noticed > 200


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_save_leaves_the_earlier_file_and_no_fragment(tmp_path, monkeypatch, failing):
    path = tmp_path / "last.ckpt"
    save_checkpoint({"epoch": 1}, path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(CheckpointError, match=r"cannot save the checkpoint .*last\.ckpt: No space left on device; earlier"):
        save_checkpoint({"epoch": 2}, path, previous=tmp_path / "previous.ckpt")
    assert "last.ckpt" in names(tmp_path)
    assert not [name for name in names(tmp_path) if name.endswith(".part")]
    assert torch.load(path, weights_only=True) == {"epoch": 1}


def test_a_full_disk_is_named_although_torch_only_says_that_a_write_failed(tmp_path):  # case A11 (b)
    save_checkpoint(SMALL, tmp_path / "last.ckpt")
    large = {"model": {"weight": torch.zeros(1_000_000)}}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"last\.ckpt: File too large; earlier checkpoints are untouched"):
            save_checkpoint(large, tmp_path / "last.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["last.ckpt"]
    assert torch.equal(read_checkpoint(tmp_path / "last.ckpt")["model"]["weight"], SMALL["model"]["weight"])


def test_the_replaced_file_and_the_new_one_get_second_names(tmp_path):
    last, previous = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for step in (1, 2, 3):
        save_checkpoint(at_step(step), last, also=step_file(tmp_path, step), previous=previous)
    steps = {path.name: read_checkpoint(path)["tinyexp"]["step"] for path in tmp_path.iterdir()}
    assert steps == {
        "last.ckpt": 3,
        "previous.ckpt": 2,
        "step-00000001.ckpt": 1,
        "step-00000002.ckpt": 2,
        "step-00000003.ckpt": 3,
    }
    assert last.stat().st_ino == step_file(tmp_path, 3).stat().st_ino


def test_a_file_system_without_hard_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    last, previous = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for step in (1, 2):
        save_checkpoint(at_step(step), last, previous=previous)
    assert [read_checkpoint(path)["tinyexp"]["step"] for path in (previous, last)] == [1, 2]
    assert names(tmp_path) == ["last.ckpt", "previous.ckpt"]


def test_names_with_spaces_and_accents_and_long_ones_are_written(tmp_path):
    folder = tmp_path / "été à l'ombre" / ("x" * 200)
    folder.mkdir(parents=True)
    path = folder / ("é" * 100 + ".ckpt")
    save_checkpoint(SMALL, path)
    assert damaged_record(path) == ""


def test_files_have_the_mode_that_the_user_chose(tmp_path):
    mask = os.umask(0o027)
    try:
        save_checkpoint(SMALL, tmp_path / "last.ckpt")
    finally:
        os.umask(mask)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o640


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    save_checkpoint(SMALL, tmp_path / "last.ckpt")
    checkpoint_file._temporary(tmp_path / "last.ckpt").write_bytes(b"half")
    assert len(remove_fragments(tmp_path)) == 1
    assert names(tmp_path) == ["last.ckpt"]


# --- the one to continue from


def test_the_newest_good_one_is_found_and_a_damaged_one_set_aside(tmp_path, caplog):  # case A11 (a)
    for name, step in (("last.ckpt", 9), ("previous.ckpt", 6), ("best.ckpt", 3), ("step-00000008.ckpt", 8)):
        save_checkpoint(at_step(step), tmp_path / name)
    assert newest_good(tmp_path, CheckpointCfg()) == tmp_path / "last.ckpt"
    for name in ("last.ckpt", "step-00000008.ckpt"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    assert newest_good(tmp_path, CheckpointCfg()) == tmp_path / "previous.ckpt"
    assert names(tmp_path) == ["best.ckpt", "last.ckpt.corrupt", "previous.ckpt", "step-00000008.ckpt.corrupt"]
    warned = [record.getMessage() for record in caplog.records]
    assert any("last.ckpt is incomplete or corrupt" in message for message in warned)


def test_time_is_no_measure_of_age(tmp_path):
    for name, step in (("last.ckpt", 9), ("previous.ckpt", 6)):
        save_checkpoint(at_step(step), tmp_path / name)
    os.utime(tmp_path / "last.ckpt", (0, 0))
    assert newest_good(tmp_path, CheckpointCfg()) == tmp_path / "last.ckpt"


def test_a_run_does_not_start_over_where_every_checkpoint_is_damaged(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints of .* can be read.*resume_from=null starts over"):
        newest_good(tmp_path, CheckpointCfg())
    assert newest_good(tmp_path / "empty", CheckpointCfg()) is None


WRITER = """
import sys, torch
from pathlib import Path
from tinyexp.training.checkpoint_file import save_checkpoint
print("ready", flush=True)
for step in range(1, 10_000):
    values = {"model": {"weight": torch.full((500_000,), float(step))}, "tinyexp": {"step": step}}
    save_checkpoint(values, Path(sys.argv[1]) / "last.ckpt", previous=Path(sys.argv[1]) / "previous.ckpt")
    print(step, flush=True)
"""


def test_what_was_announced_survives_a_kill_at_any_moment(tmp_path):  # case A11 (c); 200 trials in benchmarks/faults
    moments = random.Random(1)
    for trial in range(5):
        folder = tmp_path / str(trial)
        folder.mkdir()
        writer = subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        writer.stdout.readline()
        announced = 0
        for _ in range(moments.randint(1, 4)):
            announced = int(writer.stdout.readline())
        for _ in range(moments.randint(0, 20_000)):
            pass
        writer.kill()
        announced = max([announced, *map(int, writer.communicate()[0].split())])
        path = newest_good(folder, CheckpointCfg())
        assert path is not None
        step = read_checkpoint(path)["tinyexp"]["step"]
        assert step >= announced
        assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.full((500_000,), float(step)))
        shutil.rmtree(folder)
