import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADER = """
import functools, multiprocessing, os, signal, sys, time
from torch.utils.data import DataLoader
from tinyexp.data.worker_process import serve_rank
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)  # a rank, which will save
batches = iter(DataLoader(range(1000), num_workers=2, worker_init_fn=functools.partial(serve_rank, os.getpid())))
print(sum(1 for _ in zip(range(10), batches)), end="")  # so that both have started
print(flush=True)
sys.stdin.readline()
print(sum(1 for _ in zip(range(500), batches)), flush=True)
workers = multiprocessing.active_children()
for worker in workers:
    worker.terminate()
for worker in workers:
    worker.join(5)
print([worker.exitcode for worker in workers], flush=True)
os._exit(0)
"""


def start() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", LOADER], cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    assert process.stdout
    assert process.stdout.readline() == "10\n"
    return process


def test_loader_workers_are_killed_with_their_rank():
    with start() as process:
        assert process.stdout
        process.kill()
        begin = time.monotonic()
        assert process.stdout.read() == ""  # the pipe ends with the workers, its last writers
        assert time.monotonic() - begin < 2  # torch's own watch over the parent asks every 5 s


def test_signals_to_all_processes_of_a_rank_leave_its_workers_to_the_rank():
    with start() as process:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.killpg(process.pid, number)
        time.sleep(0.2)
        said, _ = process.communicate("\n", timeout=30)
    assert said == "500\n[0, 0]\n"
