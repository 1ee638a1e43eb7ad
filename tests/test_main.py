"""`python -m tinyexp`: what it offers, and what it says to what it does not know."""

import os
import subprocess
import sys

import pytest

from tinyexp import __main__ as front_door


def test_alone_it_says_what_can_be_run(capsys):
    assert front_door.main([]) == 0
    page = capsys.readouterr().out
    for part in (
        "python -m tinyexp doctor",
        "python -m tinyexp.data.check <data root>",
        "python -m tinyexp.examples.vit_tp_exp",
        "mode=help",
    ):
        assert part in page


@pytest.mark.parametrize(
    ("argument", "part"), [("docter", "nearest: doctor"), ("epochs=3", "An experiment is run by its module"), ("", "''")]
)
def test_a_command_that_does_not_exist_ends_in_one_message(argument, part, capsys):
    assert front_door.main([argument]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: no such command")
    assert part in printed.err
    assert printed.err.count("\n") == 1


def test_every_subcommand_exists():
    import importlib

    for name, each in front_door.SUBCOMMANDS.items():
        assert callable(getattr(importlib.import_module(each.module), each.function)), name
    for module in front_door.DATA_COMMANDS:
        assert callable(importlib.import_module(module).main), module


def test_a_reader_that_leaves_gets_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "tinyexp"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_folder_whose_name_is_no_text_ends_in_one_message():
    command = [sys.executable, "-m", "tinyexp", "report", b"caf\xe9"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"})
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ") and rb"caf\udce9 is no folder" in done.stderr
