"""A training whose console is lost: a reader that leaves, a disk that is full, a stream that was closed."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers.traced import TracedExp
from tinyexp.experiment.entry import store_and_run_exp


def _run(stdout: int | None, folder: Path, arguments: list[str]) -> NoReturn:
    """As a shell runs the command; stdout: where it leads, None for `>&-`."""
    try:
        os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115, as long as this process
        os.close(1)
        sys.stdout = None  # pyright: ignore[reportAttributeAccessIssue] as Python starts without one
        if stdout is not None:
            os.dup2(stdout, 1)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        os.environ["OMP_NUM_THREADS"] = "1"
        store_and_run_exp(TracedExp, [f'output_root="{folder}"', *arguments])
    except SystemExit as left:
        os._exit(int(left.code or 0))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


@pytest.mark.parametrize("stdout", ["closed pipe", "full disk", "closed"])
def test_a_training_is_finished_and_saved_whatever_becomes_of_its_console(stdout, toy_set, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    leads_to = {"closed pipe": writer, "full disk": os.open("/dev/full", os.O_WRONLY), "closed": None}[stdout]
    child = os.fork()
    if child == 0:
        _run(leads_to, tmp_path, [f'dataloader_cfg.data_root="{toy_set}"', "epochs=1", "lr_scheduler_cfg.warmup_epochs=0"])
    os.close(writer)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = (tmp_path / "stderr").read_text()
    assert status == 0, said
    assert "Traceback" not in said
    assert ("stdout did not take all that was printed: No space left on device" in said) == (stdout == "full disk")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 4
    assert (tmp_path / "run" / "last.ckpt").exists()
    noted = (tmp_path / "run" / "logs" / "rank-0.log").read_text().count("stdout takes no more")
    assert noted == (stdout != "closed")
