import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tinyexp.launch.output import GREETING, STDOUT, OutputServer

WAIT_S = 20.0


@pytest.fixture
def server():
    server = OutputServer("127.0.0.1")
    yield server
    server.close(0.0)


def start_rank(server: OutputServer, code: str, *, token: bytes | None = None) -> subprocess.Popen[bytes]:
    connect = (
        f"from tinyexp.launch.output import print_at_driver\nprint_at_driver({server.address}, {token or server.token}, 1)\n"
    )
    return subprocess.Popen([sys.executable, "-c", "import os, sys, time\n" + connect + code])


def wait_for(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What has been printed on stdout, once it contains the text."""
    seen = ""
    deadline = time.monotonic() + WAIT_S
    while text not in seen and time.monotonic() < deadline:
        seen += capsys.readouterr().out
        time.sleep(0.02)
    return seen


def test_lines_of_a_rank_and_its_children_arrive_whole_and_on_their_own_streams(server, capsys):
    code = (
        "sys.stdout.write('first ')\n"
        "sys.stdout.flush()\n"
        "sys.stdout.write('line\\n')\n"
        "print('a problem', file=sys.stderr)\n"
        "os.system('echo of a child')\n"
        "print('no line end', end='')\n"
    )
    assert start_rank(server, code).wait(WAIT_S) == 0
    server.close(WAIT_S)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("first line\nof a child\nno line end", "a problem\n")


def test_a_progress_bar_is_shown_before_its_line_ends(server, capsys):
    rank = start_rank(server, "print('10 %', end='', flush=True)\ntime.sleep(60)\n")
    assert "10 %" in wait_for("10 %", capsys)
    rank.kill()
    rank.wait()


def test_lines_of_two_ranks_do_not_mix(server, capsys):
    code = "for i in range(300): print('{0}' * 50)\n"
    ranks = [start_rank(server, code.format(letter)) for letter in "ab"]
    assert [rank.wait(WAIT_S) for rank in ranks] == [0, 0]
    server.close(WAIT_S)
    assert sorted(capsys.readouterr().out.splitlines()) == ["a" * 50] * 300 + ["b" * 50] * 300


def test_a_stranger_prints_nothing(server, capsys):
    with socket.create_connection(server.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost:8000\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert start_rank(server, "print('trusted')\n").wait(WAIT_S) == 0
    server.close(WAIT_S)
    assert capsys.readouterr().out == "trusted\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_gets_the_signal_that_its_driver_sends(server, capsys, number):
    code = f"import signal\nsignal.signal({number}, lambda *_: (print('saved'), sys.exit(5)))\nprint('ready')\ntime.sleep(60)\n"
    rank = start_rank(server, code)
    wait_for("ready", capsys)
    assert (server.is_connected(0), server.is_connected(1)) == (False, True)
    server.send_signal(1, number)
    assert rank.wait(WAIT_S) == 5
    assert "saved" in wait_for("saved", capsys)


def test_a_rank_ends_with_its_driver():
    driver = (
        "import subprocess, sys, time\n"
        "from tinyexp.launch.output import OutputServer\n"
        "server = OutputServer('127.0.0.1')\n"
        "code = f'''import os, time\n"
        "from tinyexp.launch.output import print_at_driver\n"
        "print_at_driver({server.address}, {server.token}, 1)\n"
        "print(os.getpid())\n"
        "time.sleep(60)'''\n"
        "subprocess.run([sys.executable, '-c', code])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline().strip().isdecimal()
    process.kill()
    # the pipe is also the rank's, by inheritance, and ends with it
    process.stdout.read()
    process.stdout.close()
    process.wait()


class LateServer(OutputServer):
    """Its thread that accepts connections gets no time before the close."""

    def _accept(self) -> None:
        if threading.current_thread() is threading.main_thread():
            super()._accept()


def test_the_lines_of_a_rank_that_was_yet_to_be_accepted_are_printed(capsys):
    server = LateServer("127.0.0.1")
    with socket.create_connection(server.address) as rank:
        rank.sendall(GREETING.pack(server.token, STDOUT, 1) + b"all that it had to say\n")
    server.close(WAIT_S)
    assert capsys.readouterr().out == "all that it had to say\n"
    assert set(server.ended) == {1}


def test_the_end_of_a_rank_is_noted_with_its_number(server):
    assert start_rank(server, "print('done')\n").wait(WAIT_S) == 0
    server.close(WAIT_S)
    assert set(server.ended) == {1}
    assert not server.ended[1].was_silent
