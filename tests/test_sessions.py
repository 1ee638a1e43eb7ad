import os
import subprocess
import sys

from tinyexp import sessions

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def guarded(session: int, started: str, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in (f"{session} {started}", *lines))
    subprocess.run([sys.executable, "-I", "-S", sessions.__file__], input=text, text=True, check=True, timeout=20)


def test_a_guard_ends_its_session_and_no_other_that_has_got_its_number():
    with subprocess.Popen(SLEEP, start_new_session=True) as leader:
        started = sessions.start_time(leader.pid)
        assert sessions.members(leader.pid) == {leader.pid: os.getpid()}
        guarded(leader.pid, "12345")
        guarded(leader.pid, started, "done")
        assert leader.poll() is None
        guarded(leader.pid, started)
        assert leader.wait(10) == -9
    assert sessions.members(leader.pid) == {}
    assert sessions.start_time(leader.pid) == ""


def test_a_signal_goes_to_a_member_of_the_session_only():
    with subprocess.Popen(SLEEP, start_new_session=True) as other:
        sessions.send(other.pid, 9, session=os.getsid(0))
        assert sessions.start_time(other.pid)
        sessions.send(other.pid, 9, session=other.pid)
        assert other.wait(10) == -9
    sessions.send(other.pid, 9, session=other.pid)  # it has ended
