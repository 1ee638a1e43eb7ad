import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyexp.errors import MachineError
from tinyexp.experiment.run_folder import is_owned, owned, set_earlier_run_aside

OWNER = """
import sys, time
from pathlib import Path
from tinyexp.experiment.run_folder import owned
with owned(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path):
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "owned\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_with_pid_and_start_of_the_first(tmp_path, owner):
    with (
        pytest.raises(MachineError, match=rf"belongs to a run that is still going: pid {owner.pid} on .*, started 20"),
        owned(tmp_path),
    ):
        pass


def test_the_folder_of_a_killed_run_is_free(tmp_path, owner):
    owner.kill()
    owner.wait()
    with owned(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_folder_is_owned_as_long_as_its_owner_lives(tmp_path, owner):
    assert is_owned(tmp_path)
    owner.kill()
    owner.wait()
    assert not is_owned(tmp_path)
    assert not is_owned(tmp_path / "nowhere")


def test_who_looks_whether_a_folder_is_owned_keeps_no_run_from_taking_it(tmp_path):
    (tmp_path / ".lock").touch()
    looker = os.fork()
    if looker == 0:
        while os.getppid() != 1:
            is_owned(tmp_path)
    refused = 0
    try:
        with open(tmp_path / ".lock", "r+") as lock:
            for _ in range(20_000):
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.lockf(lock, fcntl.LOCK_UN)
                except OSError:
                    refused += 1
    finally:
        os.kill(looker, 9)
        os.waitpid(looker, 0)
    assert refused == 0


def test_a_fork_does_not_keep_the_folder(tmp_path):
    reader, writer = os.pipe()
    with owned(tmp_path):
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
    check = subprocess.run([sys.executable, "-c", OWNER.replace("time.sleep(60)", ""), tmp_path], capture_output=True, text=True)
    os.write(writer, b".")
    os.waitpid(child, 0)
    assert check.stdout == "owned\n", check.stderr


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path, monkeypatch):
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", read_only)
    with pytest.raises(MachineError, match=r"cannot be written: Read-only file system; set another output_root"), owned(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written: Not a directory"), owned(tmp_path / "file" / "run"):
        pass


def test_a_disk_without_room_for_two_checkpoints_is_refused_with_both_sizes(tmp_path):
    with (
        pytest.raises(MachineError, match=r"MB free, and two checkpoints of this run take 1000000000 MB"),
        owned(tmp_path, needed_bytes=10**15),
    ):
        pass


def test_what_an_earlier_run_left_is_moved_and_never_overwritten(tmp_path):
    aside = tmp_path
    for _ in range(2):
        for name in ("last.ckpt", "step-00000004.ckpt", "log.txt", "notes.md"):
            Path(tmp_path, name).write_text(name)
        moved_to = set_earlier_run_aside(tmp_path, ["last.ckpt", "step-*.ckpt", "log.txt", "best.ckpt"])
        assert moved_to is not None
        aside = moved_to
    assert aside == tmp_path / "earlier-2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-1", "earlier-2", "notes.md"]
    assert sorted(path.name for path in aside.iterdir()) == ["last.ckpt", "log.txt", "step-00000004.ckpt"]
    assert set_earlier_run_aside(tmp_path, ["last.ckpt"]) is None
