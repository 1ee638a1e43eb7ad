"""The paths of the small commands: a user that does not exist is one message, not a traceback."""

import importlib
import sys
from pathlib import Path

import pytest

from tinyexp.__main__ import main
from tinyexp.limits import home_path

ABSENT = "~nobody-of-that-name/set"
MESSAGE = f"{ABSENT!r}: there is no user ~nobody-of-that-name; ~ alone is your home folder"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("check", [ABSENT]), ("check", ["set", "--against", ABSENT]), ("digits", [ABSENT]), ("shards", ["pack", "set", ABSENT])],
)
def test_commands_of_the_data_room_name_it(module, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"tinyexp.data.{module}").main()
    assert ended.value.code == 2
    assert MESSAGE in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["report", ABSENT], ["doctor", "--data-root", ABSENT], ["doctor", "--output-root", ABSENT]]
)
def test_so_do_those_of_the_package(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))
    assert ended.value.code == 2
    assert MESSAGE in capsys.readouterr().err


def test_the_home_folder_is_meant_by_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/mine")
    assert home_path("~/set") == Path("/home/of/mine/set")
