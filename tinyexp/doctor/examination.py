"""All checks at once, each group in a process of its own, and an end after a fixed time whatever they do."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tinyexp.doctor.finding import MISSING, Checks, Finding, Options
from tinyexp.doctor.worker import GROUPS

DEADLINE_S = 25.0  # a cold disk and a busy machine need ten
GONE_S = 1.0  # from the kill to the end of a process
WORKER = (sys.executable, "-m", "tinyexp.doctor.worker")


def examine(options: Options, *, deadline_s: float = DEADLINE_S, worker: Sequence[str] = WORKER) -> list[Finding]:
    """A finding for each check. What hangs or dies is one too. Nothing that was started is waited for beyond the deadline."""
    end = time.monotonic() + deadline_s
    running = {group: _Group(group, options, worker) for group in GROUPS}
    try:
        for each in running.values():
            each.wait(end)
    finally:
        for each in running.values():
            each.kill()
    return [finding for name, checks in GROUPS.items() for finding in running[name].findings(checks, deadline_s)]


class _Group:
    """The process of one group of checks, and the lines that it has written."""

    def __init__(self, name: str, options: Options, worker: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [*worker, name, json.dumps(asdict(options))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # to be killed as one, and not by Ctrl-C before its time
        )
        self._lines: list[str] = []
        self._timed_out = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:  # as they come, for a process that hangs later
                self._lines.append(line)

    def wait(self, end: float) -> None:
        self._reader.join(max(0.0, end - time.monotonic()))
        self._timed_out = self._reader.is_alive()

    def kill(self) -> None:
        """End the process and what it started. One that the kernel holds on to, as on a dead network disk, is left to it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_S)
        self._reader.join(GONE_S)

    def findings(self, checks: Checks, deadline_s: float) -> Iterator[Finding]:
        lines = [json.loads(line) for line in list(self._lines) if line.endswith("\n")]
        found = {line["check"]: Finding(**line) for line in lines if "check" in line}
        stuck = next((name for name in checks if name not in found), "")
        for name in checks:
            if name in found:
                yield found[name]
            elif name == stuck:
                yield Finding(
                    name, self._end_of_stuck(deadline_s), MISSING, "see what it waits for: a disk, a driver, a name server"
                )
            else:
                yield Finding(name, f"not tried, because the check {stuck!r} did not end", MISSING)

    def _end_of_stuck(self, deadline_s: float) -> str:
        if self._timed_out:
            return f"no answer within {deadline_s:g} s"
        status = self._process.returncode
        how = signal.Signals(-status).name if status and status < 0 else f"status {status}"
        return f"the process of this check ended with {how}"
