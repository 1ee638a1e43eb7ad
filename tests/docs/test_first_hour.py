"""The first hour is true: its file and its commands run, in the order of the page, and print what the page shows."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.pages import ROOT
from tinyexp.data.digits import write_digits

COMMAND = "python my_digits.py "
PAGE = (ROOT / "docs" / "first_hour.md").read_text(encoding="utf-8")
FENCES = [(token.info, token.content) for token in MarkdownIt().parse(PAGE) if token.type == "fence"]
FILE = next(content for language, content in FENCES if language == "python")
STEPS = [  # the arguments of each command, and what is shown below it
    (content.removeprefix(COMMAND).strip(), shown if kind == "text" else "")
    for (language, content), (kind, shown) in pairwise([*FENCES, ("", "")])
    if language == "bash" and content.startswith(COMMAND)
]
SHORTER = {
    "max_train_steps=200": ["max_train_steps=4"],
    "resume_from=auto": ["max_train_steps=5", "write_report=false"],
    "mode=bench": ["bench_cfg.warmup_steps=0", "bench_cfg.measure_steps=1"],
    "mode=verify": ["verify_cfg.steps=1"],
}
# One process that has imported the experiment runs all commands: each would spend seconds on that alone.
DRIVER = """
import json, sys
from my_digits import MyDigits
from tinyexp.experiment.entry import run_command
for arguments in json.loads(sys.argv[1]):
    print("\\n--- status", run_command(MyDigits, arguments), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the reader works, with the images of the page."""
    folder = tmp_path_factory.mktemp("first_hour")
    write_digits(folder / "data" / "digits")
    return folder


@pytest.fixture(scope="module")
def said(folder) -> dict[str, tuple[str, int]]:
    """What each command printed and its status, by its arguments as the page has them."""
    (folder / "my_digits.py").write_text(FILE, encoding="utf-8")
    commands = [[*arguments.split(), *SHORTER.get(arguments, [])] for arguments, _ in STEPS]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    parts = re.findall(r"(.*?)\n--- status (\d+)\n", done.stdout, re.DOTALL)
    assert len(parts) == len(STEPS), done.stdout
    return {arguments: (printed, int(status)) for (arguments, _), (printed, status) in zip(STEPS, parts, strict=True)}


def test_no_command_is_left_out():
    assert "Save this as `my_digits.py`" in PAGE
    assert len(STEPS) == PAGE.count(f"```bash\n{COMMAND}") == 8
    assert SHORTER.keys() < {arguments for arguments, _ in STEPS}
    assert sum(bool(shown) for _, shown in STEPS) == PAGE.count("```text\n") - 1  # which shows a folder


@pytest.mark.parametrize(("arguments", "shown"), STEPS, ids=[arguments for arguments, _ in STEPS])
def test_a_command_prints_what_the_page_shows(arguments, shown, said):
    printed, status = said[arguments]
    assert status == (2 if shown.startswith("error: ") else 0), printed
    here = shown.replace("at epoch 9, step 2 of it, 200 steps", "at epoch 0, step 4 of it, 4 steps")
    for line in here.splitlines():
        assert line in printed


def test_the_page_names_its_commands_alike_in_its_table_and_in_its_steps():
    for arguments, shown in STEPS:
        assert shown.startswith("error: ") or f"`{COMMAND}{arguments}`" in PAGE, arguments


def test_a_continued_run_is_longer_by_what_was_left(said):
    assert "training                │ 4 steps" in said["max_train_steps=200"][0]
    assert "training                │ 5 steps" in said["resume_from=auto"][0]


def test_the_images_that_the_page_shows_are_there(folder):
    root = folder / "data" / "digits"
    told = re.findall(r"^data/digits/(\w+)/(\S+) +([\d,]+)", PAGE, re.MULTILINE)
    assert [split for split, _, _ in told] == ["train", "val"]
    for split, name, number in told:
        assert (root / split / name).is_file()
        assert len(list(root.glob(f"{split}/*/*.png"))) == int(number.replace(",", ""))


def test_the_run_leaves_the_files_that_the_page_names(folder, said):
    rows = PAGE.split("It leaves `output/my_digits/`:")[1].split("`Test EMA`")[0]
    names = re.findall(r"`([\w.]+\.\w+)`", rows)
    assert len(names) >= 6
    for name in [*names, "eval.json"]:
        assert (folder / "output" / "my_digits" / name).is_file(), name
