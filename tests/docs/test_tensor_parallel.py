"""The page on tensor parallelism is true: every Python block runs, and prints what stands below it."""

import contextlib
import io
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tinyexp.launch.local import run_local

PRELOADED = ["torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch._dynamo", "tests.docs.test_tensor_parallel"]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tensor_parallel.md").read_text(encoding="utf-8")
LEAVE = "\nimport os, sys; sys.stdout.flush(); os._exit(0)\n"  # as the page says: one of these blocks opens a process group
BLOCK = re.compile(r"(?:^On (\d) processes:\n\n)?^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A script of the page, on how many processes it runs, and what it prints."""

    num_processes: int
    code: str
    printed: str


BLOCKS = [Block(int(number or 1), code, printed) for number, code, printed in BLOCK.findall(PAGE)]


def test_no_block_is_left_out():
    assert len(BLOCKS) == PAGE.count("```python\n") == 9
    assert all(block.printed for block in BLOCKS)
    assert sorted({block.num_processes for block in BLOCKS}) == [1, 2, 4]


def line_of(block: Block) -> str:
    return f"line_{PAGE[: PAGE.index(block.code)].count(chr(10)) + 1}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.num_processes == 1], ids=line_of)
def test_a_block_of_one_process_prints_what_the_page_says(block, tmp_path):
    assert output_of(sys.executable, "-c", block.code + LEAVE, folder=tmp_path) == block.printed


@pytest.mark.parametrize("block", [block for block in BLOCKS[1:] if block.num_processes > 1], ids=line_of)
def test_a_block_of_several_processes_prints_what_the_page_says(block, tmp_path):
    path = tmp_path / "block.py"
    path.write_text(block.code, encoding="utf-8")
    # forked from one process that has imported torch: torchrun would spend half a minute on imports in each of them
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    printed = run_local(partial(printed_by_script, path), block.num_processes, start_method="forkserver")
    assert "".join(printed) == block.printed


def test_the_first_block_runs_by_the_command_of_the_page(tmp_path):
    block = BLOCKS[0]
    (tmp_path / "block.py").write_text(block.code, encoding="utf-8")
    command = "torchrun --standalone --nproc-per-node 2 block.py"
    assert f"\n    {command}\n" in PAGE
    torchrun, *arguments = command.split()
    assert output_of(str(Path(sys.executable).parent / torchrun), *arguments, folder=tmp_path) == block.printed


def output_of(*command: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_by_script(path: Path) -> str:
    """What this rank prints when it runs the script, whose process group the launcher's variables describe."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()
