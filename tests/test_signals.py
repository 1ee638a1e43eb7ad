import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinyexp import signals
from tinyexp.signals import StopRequest


def test_the_handlers_of_before_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_gives_the_status_that_a_shell_gives_it():
    with StopRequest() as stop, pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
        stop.raise_if_asked()
    assert caught.value.code == 143


def test_a_signal_that_comes_twice_at_once_counts_once():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert (stop.count, stop.name) == (1, "SIGINT")


def test_a_later_signal_counts_again(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_S", 0.05)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        signal.raise_signal(signal.SIGTERM)
    assert (stop.count, stop.name) == (2, "SIGINT")


STUBBORN = """
import time
from pathlib import Path
from tinyexp.signals import StopRequest
with StopRequest(second_leaves=True) as stop:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if stop.count:
            print(stop.name, flush=True)
            time.sleep(60)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_a_rank_at_once(number, status):
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.send_signal(number)  # a repetition
        assert process.stdout.readline() == f"{number.name}\n"
        time.sleep(signals.REPEAT_S)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=10) == status


def run_python(folder, *arguments):
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_ctrl_c_while_a_command_imports_what_it_needs_ends_it_with_a_word(tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    done = run_python(tmp_path, "-m", "tinyexp.data.digits", "x")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_another_error_of_a_command_keeps_its_traceback(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ValueError('a mistake of ours')\n")
    done = run_python(tmp_path, "-m", "tinyexp.data.digits", "x")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("ValueError: a mistake of ours\n")


def test_who_imports_the_package_keeps_what_python_does_on_ctrl_c(tmp_path):
    code = "import sys, tinyexp\nassert sys.excepthook is sys.__excepthook__\n"
    (tmp_path / "other.py").write_text(code)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(code)
    (tmp_path / "package" / "__main__.py").touch()
    for arguments in (["-c", code, "-m", "tinyexp"], ["-m", "other", "tinyexp"], ["-m", "package"], [str(tmp_path / "other.py")]):
        done = run_python(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
