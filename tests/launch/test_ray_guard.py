import os
import subprocess
import sys
from pathlib import Path

from tests.launch.conftest import is_alive, still_alive
from tinyexp.launch import ray_guard
from tinyexp.launch.ray_guard import clear, users


def start_user(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("w") as log:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=log)


def test_the_users_of_a_folder_are_ended_with_it_except_the_driver(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    user = start_user(folder)
    with (folder / "own log").open("w"):
        assert set(users(str(folder))) == {user.pid, os.getpid()}
        clear(str(folder), driver=os.getpid())
    assert user.wait(10) == -9
    assert not folder.exists()


def test_a_killed_driver_is_noticed(tmp_path, pids):
    folder = tmp_path / "ray"
    folder.mkdir()
    driver = (
        f"import subprocess, sys, time\nguard = subprocess.Popen([sys.executable, {ray_guard.__file__!r}, {str(folder)!r}], "
        "stdin=subprocess.PIPE, start_new_session=True)\nprint(guard.pid, flush=True)\ntime.sleep(60)\n"
    )
    user = start_user(folder)
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    guard = int(process.stdout.readline())
    assert is_alive(guard)
    process.kill()
    assert user.wait(10) == -9
    (pids / str(guard)).touch()
    assert still_alive(pids) == []
    assert not folder.exists()
    process.stdout.close()
    process.wait()
