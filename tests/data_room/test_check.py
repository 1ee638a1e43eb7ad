"""The command that reads and decodes every image of a data set, and compares it with an earlier record."""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import write_toy_split
from tests.data_room.test_decoding import COLOURS, UNREADABLE
from tinyexp.data import check as command
from tinyexp.data import inspection
from tinyexp.data.shards import pack
from tinyexp.errors import MachineError


@pytest.fixture
def root(tmp_path, toy_set) -> Path:
    shutil.copytree(toy_set, tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        """Exit status, standard output and error of the command, in this process with one more that reads."""
        monkeypatch.setattr(sys, "argv", ["check", *map(str, arguments), "--processes", "1"])
        status = 0
        try:
            command.main()
        except SystemExit as left:
            status = int(left.code or 0)
        return status, *capsys.readouterr()

    return run


def test_a_good_set_is_counted_and_recorded_and_the_record_is_not_overwritten(root, run):
    status, out, err = run(root)
    assert (status, err) == (0, "")
    assert "train: 64 images, " in out
    assert "  classes: 4; fewest images: c0 (16), c1 (16), c2 (16); most: c3 (16), c2 (16), c1 (16)\n" in out
    assert "  sizes: 72 x 72 to 72 x 72 pixels\n  kinds: JPEG RGB (11)\n" in out
    assert out.endswith("every image can be read\n")
    record = json.loads((root / "dataset.json").read_text())
    content = (root / "val" / "c3" / "1.JPEG").read_bytes()
    assert record["files"]["val/c3/1.JPEG"] == [len(content), hashlib.sha256(content).hexdigest()]
    assert (len(record["files"]), record["classes"]["val"], record["unreadable"]) == (
        75,
        {"c0": 3, "c1": 3, "c2": 3, "c3": 2},
        {},
    )
    status, out, err = run(root)
    assert (status, out) == (2, "")
    assert f"{root}/dataset.json exists and is not overwritten; compare with it by --against {root}/dataset.json" in err


def test_unreadable_files_and_odd_kinds_are_named_and_the_status_is_3(tmp_path, case_images, run):
    (tmp_path / "val" / "c0").mkdir(parents=True)
    for name in (*COLOURS, *UNREADABLE):
        shutil.copy(case_images / name, tmp_path / "val" / "c0" / name)
    status, out, err = run(tmp_path)
    assert status == 3
    assert f"error: {tmp_path}: 5 images are unreadable, 0 differ from the record" in err
    for name, reason in UNREADABLE.items():
        [line] = [line for line in out.splitlines() if line.startswith(f"unreadable: val/c0/{name}: ")]
        assert reason in line
    kinds = json.loads((tmp_path / "dataset.json").read_text())["kinds"]["val"]
    assert kinds == {"JPEG CMYK": 1, "JPEG L": 1, "JPEG RGB": 1, "PNG RGB named .jpeg": 1, "PNG L named .jpeg": 1}


@pytest.mark.parametrize("data_format", ["folder", "shards"])
def test_damage_that_still_decodes_and_missing_and_new_files_are_found_by_the_record(tmp_path, run, data_format):
    root, record = tmp_path / "set", tmp_path / "record.json"
    write_toy_split(root / "train", (3, 2))
    if data_format == "shards":
        pack(root, tmp_path / "packed")
        root = tmp_path / "packed"
    assert run(root, "--data-format", data_format, "--record", record)[0] == 0
    assert run(root, "--data-format", data_format, "--against", record)[0] == 0
    assert not (root / "dataset.json").exists()
    if data_format == "shards":
        name, spoiled = "train/train-000000.tar: c0/0.jpeg", root / "train" / "train-000000.tar"
    else:
        name, spoiled = "train/c0/0.JPEG", root / "train" / "c0" / "0.JPEG"
        (root / "train" / "c0" / "1.JPEG").write_bytes((root / "train" / "c0" / "2.JPEG").read_bytes())
        (root / "train" / "c0" / "2.JPEG").rename(root / "train" / "c0" / "3.JPEG")
    content = spoiled.read_bytes()
    middle = content.index(b"\xff\xda") + 900  # within the stream of the first image
    spoiled.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
    status, out, err = run(root, "--data-format", data_format, "--against", record)
    assert status == 3
    assert "0 images are unreadable" in err
    lines = [line.removeprefix(f"differs from {record}: ") for line in out.splitlines() if line.startswith("differs")]
    assert lines[0] == f"{name}: damaged or replaced: other bytes, of the same size"
    if data_format == "folder":
        assert lines[1].startswith("train/c0/1.JPEG: changed: ")
        assert lines[2:] == ["train/c0/2.JPEG: missing", "train/c0/3.JPEG: new"]
    else:
        assert len(lines) == 1


def test_wrong_commands_end_in_one_message_before_anything_is_read(root, tmp_path, run):
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for arguments, status, message in (
        ([tmp_path / "empty", "--record", tmp_path / "r"], 3, "holds neither a folder train nor a folder val"),
        ([tmp_path / "nowhere"], 3, "nowhere does not exist or is no folder"),
        ([root, "--record", tmp_path / "nowhere" / "r"], 2, "nowhere is no folder that can be written to"),
        ([root, "--data-format", "shards"], 3, "holds 4 class folders and no *.tar shard; set --data-format folder"),
        ([root, "--against", tmp_path / "other.json"], 3, "other.json is no record of a data set (KeyError: 'version')"),
        ([root, "--against", tmp_path / "absent.json"], 3, "absent.json is no record of a data set (No such file"),
        ([root, "--max-pixels", "0"], 2, "'0' is too small or no whole number"),
    ):
        got, _, err = run(*arguments)
        assert (got, message in err) == (status, True), err
        assert "Traceback" not in err


def test_the_record_is_written_before_anything_is_printed_or_compared(root, tmp_path, run, monkeypatch):
    assert run(root, "--record", tmp_path / "then.json")[0] == 0

    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    for name in ("print", "differences"):
        with monkeypatch.context() as patch:
            patch.setattr(command, name, interrupted, raising=False)
            status, _, err = run(root, "--record", tmp_path / f"{name}.json", "--against", tmp_path / "then.json")
        assert (status, err) == (130, f"interrupted; the record is in {tmp_path}/{name}.json\n")
        assert (tmp_path / f"{name}.json").read_bytes() == (tmp_path / "then.json").read_bytes()


def test_a_record_of_the_other_format_is_refused_before_anything_is_read(root, tmp_path, run, monkeypatch):
    pack(root, tmp_path / "packed")
    assert run(root, "--record", tmp_path / "r.json")[0] == 0
    monkeypatch.setattr(command, "check", None)  # which would fail
    status, _, err = run(tmp_path / "packed", "--data-format", "shards", "--against", tmp_path / "r.json")
    assert (status, "the record is of a data set as folder, and this one is read as shards" in err) == (3, True)


def test_a_process_that_dies_is_said(root, monkeypatch, run):
    monkeypatch.setattr(inspection, "decode_rgb", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    status, _, err = run(root)
    assert (status, "a process that reads images died" in err) == (MachineError.exit_status, True)


def test_ctrl_c_ends_all_processes_and_writes_no_record(root, monkeypatch, capfd, tmp_path):
    may_end = tmp_path / "may end"

    def decode(*_, **__):
        while not may_end.exists():
            time.sleep(0.02)

    monkeypatch.setattr(inspection, "decode_rgb", decode)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(sys, "argv", ["check", str(root), "--processes", "6"])  # two of them wait
        try:
            command.main()
        except SystemExit as left:
            os._exit(int(left.code or 0))
        os._exit(99)
    deadline = time.monotonic() + 30
    while len(children := children_of(pid)) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 6
    os.killpg(pid, signal.SIGINT)  # as a terminal does
    may_end.touch()
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    if ended[0] == 0:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended[0] == pid, "the command goes on after Ctrl-C"
    assert os.waitstatus_to_exitcode(ended[1]) == 130
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (root / "dataset.json").exists()
    err = capfd.readouterr().err
    assert (err.count("\n"), "interrupted; no record was written" in err) == (1, True)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
