"""Faults of whole runs on two ranks: killed, terminated, out of disk; each then continued and compared with a run left alone."""

import os
import random
import re
import resource
import shutil
import signal
import time
from pathlib import Path

from benchmarks.faults.files import same_values
from benchmarks.faults.trial import Row
from tests.helpers.traced import Begun, trace
from tinyexp.errors import CheckpointError
from tinyexp.training.checkpoint import CheckpointCfg, newest_good
from tinyexp.training.checkpoint_file import read_checkpoint

STEPS = 12  # of a whole run
SAVE_ALL = ["checkpoint_cfg.save_every_steps=1"]
END_S = 30.0


class Reference:
    """A run that nothing disturbs, with a checkpoint of every step."""

    def __init__(self, data: Path, root: Path) -> None:
        self.settings = [f'dataloader_cfg.data_root="{data}"']
        self.folder = root / "run"
        assert Begun(root, *self.settings, *SAVE_ALL, "checkpoint_cfg.keep_step_ckpts=99").wait() == 0
        self.values = {}
        saved = [*self.folder.glob("step-*.ckpt"), self.folder / "last.ckpt"]
        for step in (4, 8):  # ends of epochs, which have no step file
            assert Begun(root / str(step), *self.settings, f"max_train_steps={step}").wait() == 0
            saved.append(root / str(step) / "run" / "last.ckpt")
        for path in saved:
            checkpoint = read_checkpoint(path)
            self.values[position(checkpoint)] = comparable(checkpoint)
        for path in sorted(self.folder.glob("step-*.ckpt"))[:-2]:
            path.unlink()  # the file trials need no more than two

    def knows(self, checkpoint: dict) -> bool:
        """Whether a checkpoint is bit for bit that of this run at the same place."""
        return same_values(comparable(checkpoint), self.values.get(position(checkpoint)))

    def is_continued_by(self, folder: Path) -> bool:
        """Whether a finished run took the same steps, logged the same and ended with the same checkpoint."""
        by_step = {line["step"]: line for line in trace(folder)}
        return (
            [by_step.get(step) for step in range(STEPS)] == trace(self.folder)
            and (folder / "log.txt").read_text() == (self.folder / "log.txt").read_text()
            and self.knows(read_checkpoint(folder / "last.ckpt"))
        )


def position(checkpoint: dict) -> tuple[int, bool]:
    own = checkpoint["tinyexp"]
    return own["step"], own["train_stats"] is not None


def comparable(checkpoint: dict) -> dict:
    """Everything but the settings of the command that wrote it."""
    return {name: value for name, value in checkpoint.items() if name != "args"}


def kills_of_the_run(reference: Reference, root: Path, chance: random.Random, *, trials: int) -> Row:
    """kill -9 of the command at a random moment after its first saves, of a run that saves after every step."""
    note = "two ranks, a save after every step, 0 to 0.3 s after the first to third of them"
    row = Row("kill -9 of the run while it saves", note=note)
    folder = root / "run"
    while row.trials < trials:
        command = Begun(root, *reference.settings, *SAVE_ALL, "resume_from=auto")
        saves = chance.randrange(1, 4)
        while len(saved_steps(command)) < saves and not command.has_ended():
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3))
        if not command.has_ended():
            os.kill(command.pid, signal.SIGKILL)
            command.wait()
            row.trials += 1
        row.left_over += bool(left_processes(folder))
        announced = max([0, *saved_steps(command)])
        _check_newest(row, reference, folder, announced)
        if announced >= STEPS:
            shutil.rmtree(folder, ignore_errors=True)
    command = Begun(root, *reference.settings, "resume_from=auto")
    row.lost += command.wait() != 0
    row.left_over += bool(list(folder.glob("*.part")))
    row.wrong += not (folder / "trace-0.jsonl").exists()
    return row


def saved_steps(command: Begun) -> list[int]:
    """The steps that a run has announced as saved so far."""
    return [int(step) for step in re.findall(r"^saved step (\d+)", command.said, re.MULTILINE)]


def kills_of_a_rank(reference: Reference, root: Path, chance: random.Random, *, trials: int) -> Row:
    """kill -9 of one rank at a random step; the run goes on by itself."""
    row = Row("kill -9 of one rank", note="at a random step, max_restarts=1")
    for _ in range(trials):
        shutil.rmtree(root, ignore_errors=True)
        fault = f"fault={chance.randrange(2)}:{chance.randrange(STEPS)}:kill"
        command = Begun(root, *reference.settings, fault, "max_restarts=1", *SAVE_ALL)
        row.trials += 1
        row.hung += not ends_in_time(command)
        row.lost += command.status != 0
        row.wrong += command.status == 0 and not reference.is_continued_by(root / "run")
        row.left_over += bool(left_processes(root / "run"))
    return row


def terminations(reference: Reference, root: Path, chance: random.Random, *, trials: int) -> Row:
    """SIGTERM at a random step, then the rest of the run."""
    row = Row("SIGTERM, then resume", note="at a random step; the status must be 143")
    for _ in range(trials):
        shutil.rmtree(root, ignore_errors=True)
        folder, step = root / "run", chance.randrange(1, STEPS)
        command = Begun(root, *reference.settings, "step_seconds=0.05")
        while len(trace(folder) if (folder / "trace-0.jsonl").exists() else []) < step:
            time.sleep(0.01)
        os.kill(command.pid, signal.SIGTERM)
        row.trials += 1
        row.hung += not ends_in_time(command)
        row.lost += command.status not in (143, 0)  # 0: it had just ended
        row.left_over += bool(left_processes(folder))
        row.lost += Begun(root, *reference.settings, "resume_from=auto").wait() != 0
        row.wrong += not reference.is_continued_by(folder)
    return row


def full_disks(reference: Reference, root: Path) -> Row:
    """A limit on the size of files, at every 1/8 of a checkpoint: the run ends with status 4, what was saved stays."""
    row = Row("no room for a checkpoint", note="a limit on file sizes, at every 1/8 of a checkpoint")
    size = (reference.folder / "last.ckpt").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for part in range(1, 8):
        shutil.rmtree(root, ignore_errors=True)
        folder = root / "run"
        assert Begun(root, *reference.settings, "max_train_steps=4").wait() == 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * part // 8, before[1]))
        try:
            command = Begun(root, *reference.settings, "resume_from=auto")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        row.trials += 1
        row.hung += not ends_in_time(command)
        row.wrong += command.status != 4 or "cannot save the checkpoint" not in command.said
        row.left_over += bool(left_processes(folder)) or bool(list(folder.glob("*.part")))
        _check_newest(row, reference, folder, announced=4)
    return row


def _check_newest(row: Row, reference: Reference, folder: Path, announced: int) -> None:
    """Count a checkpoint that cannot be found, is older than announced, or is not the reference's."""
    try:
        path = newest_good(folder, CheckpointCfg()) if folder.exists() else None
    except CheckpointError:
        row.lost += 1
        return
    checkpoint = read_checkpoint(path) if path else None
    row.lost += announced > 0 and (checkpoint is None or checkpoint["tinyexp"]["step"] < announced)
    row.wrong += checkpoint is not None and not reference.knows(checkpoint)


def ends_in_time(command: Begun) -> bool:
    """Wait for the command; kill one that does not end."""
    deadline = time.monotonic() + END_S
    while not command.has_ended():
        if time.monotonic() > deadline:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
            return False
        time.sleep(0.02)
    return True


def left_processes(folder: Path) -> list[int]:
    """Ranks of runs in the folder that are still there 10 s later."""
    pids = [int(path.name.partition("-")[2]) for path in folder.glob("pid-*")]
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for path in folder.glob("pid-*"):
        path.unlink()
    return left
