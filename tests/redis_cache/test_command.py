import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.redis_servers import needs_redis
from tests.launch.conftest import is_alive
from tests.redis_cache.test_server import assert_gone
from tinyexp.redis_cache.command import main

pytestmark = [pytest.mark.redis, needs_redis]

ROOT = Path(__file__).parents[2]
INNER = """
import os, signal, sys, time
from pathlib import Path
folder = Path(os.environ["TINYEXP_REDIS_FOLDER"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
print(folder, os.getpid(), *[line.split()[0] for line in (folder / "pids").read_text().splitlines()], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def start(seconds: float) -> tuple[subprocess.Popen[str], Path, list[int]]:
    command = [sys.executable, "-m", "tinyexp.redis_cache.command", "--shards", "2", "--max-memory", "0.1", "--"]
    inner = [sys.executable, "-c", INNER, str(seconds)]
    process = subprocess.Popen([*command, *inner], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline().startswith("redis-server ")
    folder, *pids = process.stdout.readline().split()
    return process, Path(folder), [int(pid) for pid in pids]


def test_the_command_sees_running_servers_its_status_is_ours_and_nothing_is_left():
    process, folder, pids = start(0.0)
    assert process.wait(20) == 3
    assert not folder.exists()
    assert not any(map(is_alive, pids))
    process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 9), (signal.SIGINT, 8)])
def test_a_signal_reaches_the_command_and_the_servers_end_after_it(number, status):
    process, folder, pids = start(60.0)
    assert folder.exists()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == status
    assert_gone(pids, folder, within_s=0.1)


def test_after_kill_9_command_servers_and_folder_are_gone_within_seconds():
    process, folder, pids = start(60.0)
    process.kill()
    process.communicate()
    assert_gone(pids, folder)


def test_wrong_arguments_and_a_missing_command_are_one_message(capsys):
    for arguments, words in (
        (["--shards", "0", "--max-memory", "-1", "--", "true"], ["--shards 0", "--max-memory -1"]),
        (["--max-memory", "0.01", "--", "no-such-command"], ["no-such-command cannot be started: No such file"]),
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
        said = capsys.readouterr().err
        assert all(word in said for word in words)


def test_a_machine_without_redis_says_so(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit) as left:
        main(["--", "true"])
    assert left.value.code == 5
    assert "no redis-server on PATH" in capsys.readouterr().err
    assert os.environ["PATH"] == "/nowhere"
