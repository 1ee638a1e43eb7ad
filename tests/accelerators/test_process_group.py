"""Trouble on the way into the process group, each ended by one message: real processes where two are needed."""

import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from tinyexp.accelerators.process_group import open_process_group
from tinyexp.errors import MachineError
from tinyexp.launch.rendezvous import LOOPBACK, listen, serve_store
from tinyexp.process import Axis, Environment

JOIN = """
import sys, torch
from tinyexp.accelerators.process_group import close_process_group, open_process_group
from tinyexp.launch.external import run_external
from tinyexp.process import Environment

def join():
    open_process_group(Environment.read(), torch.device("cpu"), float(sys.argv[1]))
    print("together", flush=True)
    close_process_group()

run_external(join)
"""


def free_port() -> int:
    with listen(LOOPBACK) as probe:
        return probe.getsockname()[1]


def by_hand(*, timeout_s: float, ranks: list[tuple[int, int]]) -> list[tuple[int, str, str]]:
    """Status, output and errors of processes with these (RANK, WORLD_SIZE) and one address."""
    address = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port()), "PYTHONPATH": str(Path(__file__).parents[2])}
    started = []
    for rank, size in ranks:
        variables = os.environ | address | {"RANK": str(rank), "WORLD_SIZE": str(size)}
        command = [sys.executable, "-c", JOIN, str(timeout_s)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True))
    outputs = [process.communicate(timeout=120) for process in started]
    return [(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def message_of(environment: Environment, device: str = "cpu") -> str:
    with pytest.raises(MachineError) as caught:
        open_process_group(environment, torch.device(device), timeout_s=1.0)
    assert not dist.is_initialized()
    return str(caught.value)


def test_two_processes_by_hand_come_together():
    for status, output, errors in by_hand(timeout_s=60, ranks=[(0, 2), (1, 2)]):
        assert (status, output) == (0, "together\n"), errors


def test_a_taken_port_is_named():
    with listen(LOOPBACK) as taken:
        port = taken.getsockname()[1]
        assert message_of(Environment(Axis(0, 2), Axis(0, 2), LOOPBACK, port)) == (
            f"rank 0 of 2 cannot serve the store at MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}: another program, or another "
            "process with RANK=0, listens on that port; use a free port and an address that every rank reaches, the same for "
            "all ranks"
        )


def test_an_address_where_no_rank_0_listens_is_named():
    port = free_port()
    message = message_of(Environment(Axis(1, 2), Axis(1, 2), LOOPBACK, port))
    assert f"rank 1 of 2 cannot reach the store at MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}: " in message


def test_ranks_that_never_come_are_named_after_the_timeout():
    port = free_port()
    begin = time.monotonic()
    assert message_of(Environment(Axis(0, 4), Axis(0, 4), LOOPBACK, port)) == (
        f"ranks 1, 2, 3 of 4 did not come to MASTER_ADDR:MASTER_PORT=127.0.0.1:{port} within timeout_s=1; "
        "start one process for each RANK below WORLD_SIZE, all with the same address and port"
    )
    assert time.monotonic() - begin < 20


def test_ranks_that_disagree_about_their_number_both_say_so_at_once():
    begin = time.monotonic()
    outcomes = by_hand(timeout_s=100, ranks=[(0, 2), (1, 3)])
    assert time.monotonic() - begin < 90
    for status, _, errors in outcomes:
        assert status == MachineError.exit_status
        assert ": WORLD_SIZE=" in errors
        assert "all ranks need the same number, and each a RANK below it" in errors
        assert "Traceback" not in errors


def test_two_processes_with_one_rank_are_named():
    errors = "\n".join(errors for _, _, errors in by_hand(timeout_s=100, ranks=[(0, 3), (1, 3), (1, 3)]))
    assert "RANK=1 is taken twice, by process " in errors
    assert "give each of the 3 processes a RANK of its own" in errors


def test_a_torch_without_the_backend_is_named_with_those_it_has(monkeypatch):
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    message = message_of(Environment(Axis(0, 2), Axis(0, 2), LOOPBACK, 29500), device="cuda")
    assert message == (
        f"this torch ({torch.__version__}) has no nccl, by which ranks on cuda exchange tensors; it has gloo. "
        "Install a CUDA build of torch, or set ray_cfg.ray_num_gpus_per_worker=0.0"
    )


def test_the_page_quotes_these_messages(monkeypatch):
    listener = listen(LOOPBACK)
    port = listener.getsockname()[1]
    serve = Environment(Axis(0, 2), Axis(0, 2), LOOPBACK, port)
    messages = [message_of(serve)]
    store = serve_store(listener)
    hosted = dataclasses.replace(serve, world=Axis(1, 3), store_is_hosted=True)
    PrefixStore("attempt0", store).set("roll/size", "2")
    messages.append(message_of(hosted))
    PrefixStore("attempt1", store).set("roll/1", "process 4711 on alpha")
    messages.append(message_of(dataclasses.replace(hosted, attempt=1)))
    messages.append(message_of(dataclasses.replace(serve, master_port=free_port())))
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    messages.append(message_of(serve, device="cuda"))
    page = (Path(__file__).parents[2] / "docs" / "tensor_parallel.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| .+ \| `(.+)` \|$", page.partition("| the message begins |")[2].partition("\n\n")[0], re.MULTILINE)
    assert len(quoted) == len(messages)
    for quote in quoted:
        assert any(plain(message).startswith(plain(quote)) for message in messages), (quote, messages)


def plain(message: str) -> str:
    """The text without numbers, and without names of hosts."""
    return re.sub(r" on \S+(?= and|;|$)", " on HOST", re.sub(r"[\d.]+(\+\w+)?", "N", message))
