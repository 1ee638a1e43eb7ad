"""The doctor as its reader meets it: one table, by a deadline, whatever hangs or breaks on the machine."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tinyexp.doctor import command
from tinyexp.doctor.capabilities import can_run, capabilities, first_commands
from tinyexp.doctor.examination import DEADLINE_S, examine
from tinyexp.doctor.finding import LIMITED, MISSING, OK, Finding, Options
from tinyexp.doctor.worker import GROUPS

CHECKS = [name for checks in GROUPS.values() for name in checks]
DOCTOR = ("-m", "tinyexp", "doctor")
PATIENT = ("-c", "import sys; from tinyexp.doctor.command import main; sys.exit(main(sys.argv[1:], deadline_s=120.0))")


def run(*arguments: str, folder: Path, program: tuple[str, ...] = DOCTOR) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, *program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The doctor on this machine, once, with a data folder of two classes, and where it ran. However busy the machine is."""
    folder = tmp_path_factory.mktemp("doctor")
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / "images" / split / name).mkdir(parents=True)
    return run("--json", "--data-root", "images", folder=folder, program=PATIENT), folder


def test_this_machine_is_described_in_strict_json(examined):
    done, folder = examined
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    page = json.loads(done.stdout, parse_constant=refuse_constant)
    assert page["can_run"] is True
    assert page["exit_status"] == 0
    assert [finding["check"] for finding in page["findings"]] == CHECKS
    assert [path.name for path in folder.iterdir()] == ["images"]


def test_two_processes_were_started_and_their_sum_was_right(examined):
    found = {finding["check"]: finding for finding in json.loads(examined[0].stdout)["findings"]}
    assert found["2 ranks, gloo"]["verdict"] == OK
    assert "between two processes gives the sum" in found["2 ranks, gloo"]["found"]
    assert found["data folder"]["advice"] == "set module_cfg.num_classes=2"
    works = {each["what"]: each["verdict"] for each in json.loads(examined[0].stdout)["works"]}
    assert works["tp=2 on CPUs"] in (OK, LIMITED)  # limited on one core
    assert works["data on disk"] == OK


# of a shell, which starts in no time; $0 is the group
HANGS = r"""
case "$0" in
packages)
    printf '%s\n' '{"began": "Python"}' '{"check": "Python", "found": "3.11", "verdict": "ok", "advice": ""}'
    printf '%s\n{"check": "pack' '{"began": "packages"}'
    sleep 60;;
machine) kill -SEGV $$;;
network) exit 3;;
esac
"""


def test_a_check_that_hangs_or_dies_is_a_row_and_the_others_are_there():
    start = time.monotonic()
    findings = examine(Options(".", "."), deadline_s=5.0, worker=("sh", "-c", HANGS))
    assert time.monotonic() - start < 30
    assert DEADLINE_S < 30  # by default, as the documents say
    found = {finding.check: finding for finding in findings}
    assert list(found) == CHECKS
    assert found["Python"].verdict == OK
    assert found["packages"].found == "no answer within 5 s"
    assert found["cores"].found == "the process of this check ended with SIGSEGV"
    assert found["memory"].found == "not tried, because the check 'cores' did not end"
    assert found["loopback"].found == "the process of this check ended with status 3"
    assert {finding.verdict for finding in findings if finding.check != "Python"} == {MISSING}


def machine(**verdicts: str) -> list[Finding]:
    """A machine on which all is well but what is named, with _ for a blank and `nccl` for two GPUs."""
    names = {name.replace(" ", "_").replace(",", ""): name for name in CHECKS}
    told = {names[name]: verdict for name, verdict in verdicts.items()}
    return [Finding(name, f"what {name} has", told.get(name, OK), "do this" * (name in told)) for name in CHECKS]


def test_without_a_working_collective_the_status_is_that_of_the_machine_and_the_obstacle_is_named(monkeypatch, capsys):
    monkeypatch.setattr(command, "examine", lambda *_, **__: machine(**{"2_ranks_gloo": MISSING}))
    assert command.main([]) == 5
    assert "No run can train here before this is mended: 2 ranks, gloo" in capsys.readouterr().out
    assert command.main(["--json"]) == 5
    page = json.loads(capsys.readouterr().out)
    assert (page["can_run"], page["exit_status"], page["first_commands"]) == (False, 5, [])


@pytest.mark.parametrize("check", ["Ray", "redis-server", "data_folder", "network", "GPUs", "shared_memory"])
def test_what_a_run_can_do_without_keeps_nothing_from_running(check):
    absent = machine(**{check.replace("-", "-"): MISSING})
    assert can_run(absent)
    assert first_commands(absent)


def test_what_works_says_why_the_rest_does_not():
    without_gpus = machine(GPUs=LIMITED, **{"2_ranks_nccl": LIMITED})
    works = {each.what: each for each in capabilities(without_gpus)}
    assert works["tp=2 on CPUs"].verdict == OK
    assert works["tp=2 on GPUs"].verdict == MISSING
    assert works["tp=2 on GPUs"].because == "GPUs: what GPUs has; two are needed"
    assert {each.verdict for each in capabilities(machine())} == {OK}
    assert first_commands(machine()) == ["python -m tinyexp.examples.vit_tp_exp"]
    assert (
        first_commands(machine(Ray=MISSING, data_folder=MISSING))[-1] == "python -m tinyexp.examples.digits_demo launcher=local"
    )
    no_gpus = {"2_ranks_nccl": LIMITED}
    assert first_commands(machine(**no_gpus))[-1].endswith("vit_tp_exp ray_cfg.ray_num_gpus_per_worker=0.0")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_shows_each_check_and_its_advice_within_the_terminal(width):
    console = Console(file=io.StringIO(), width=width)
    command.show(machine(Ray=MISSING), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    for name in (*CHECKS, "tp=2 on GPUs", "-> do this"):
        assert any(name in line for line in lines), name


def test_an_advice_with_a_long_path_is_told_to_its_end():
    path = "/a/folder/[old]/of/a/long/name/" * 4 + "{train,val}/<class>"
    console = Console(file=io.StringIO(), width=80)
    others = [each for each in machine() if each.check != "data folder"]
    command.show([*others, Finding("data folder", path, MISSING, f"make {path}")], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "".join(text.split()).count(path) >= 2
    assert "…" not in text


@pytest.mark.parametrize("arguments", [["--jsn"], ["--data-root"], ["now"]])
def test_a_wrong_argument_of_the_doctor_ends_in_one_message(arguments, tmp_path):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "allowed are --json, --data-root PATH and --output-root PATH" in done.stderr
    assert done.stderr.count("\n") == 1
