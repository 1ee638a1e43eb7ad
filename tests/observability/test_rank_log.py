import logging
import warnings

import pytest

from tinyexp.observability import rank_log
from tinyexp.process import Axis
from tinyexp.streams import ONLY_IN_FILES


@pytest.fixture
def said(monkeypatch, capsys):
    """What one rank of two shows on its console, given what it logs."""

    def run(rank, folder, log):
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's
        with rank_log.rank_logging(Axis(rank, 2), folder):
            log()
        return capsys.readouterr().err

    return run


def log_everything():
    logging.getLogger("tinyexp").info("ours")
    logging.getLogger("tinyexp").warning("our warning")
    logging.getLogger("library").warning("its warning")
    logging.getLogger("library").error("its error")
    logging.getLogger(ONLY_IN_FILES).info("a step")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning of Python's", stacklevel=1)


def test_the_console_has_all_of_the_main_rank_and_of_the_others_what_they_alone_can_say(said, tmp_path):
    main = said(0, tmp_path, log_everything)
    assert main.startswith(
        "INFO: rank 0: ours\nWARNING: rank 0: our warning\nWARNING: rank 0: its warning\nERROR: rank 0: its error\n"
    )
    assert main.count("a warning of Python's") == 2  # the message, and the line that gave it
    assert said(1, tmp_path, log_everything) == "WARNING: rank 1: our warning\nERROR: rank 1: its error\n"
    assert "a step" not in main


def test_each_rank_has_a_file_with_everything_and_its_times(said, tmp_path):
    for rank in range(2):
        said(rank, tmp_path, log_everything)
        lines = (tmp_path / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert f"rank {rank} of 2 starts on " in lines[0]
        assert f"rank {rank} of 2 ends" in lines[-1]
        for line in ("INFO ours", "WARNING its warning", "ERROR its error", "INFO a step"):
            assert sum(each.endswith(line) for each in lines) == 1
        assert any("UserWarning: a warning of Python's" in line for line in lines)
        assert all(line[:4].isdigit() and line[10] == "T" and line[19] in "+-" for line in lines if " INFO " in line)


def test_what_ends_a_rank_is_in_its_file_and_a_second_run_adds_to_it(said, tmp_path):
    def fail():
        raise ValueError("a fault of the test")

    with pytest.raises(ValueError):
        said(1, tmp_path, fail)
    said(1, tmp_path, lambda: None)
    text = (tmp_path / "logs" / "rank-1.log").read_text()
    assert "Traceback" in text
    assert "ValueError: a fault of the test" in text
    assert text.count("rank 1 of 2 starts") == 2


def test_a_file_that_cannot_be_written_is_said_once_and_ends_no_run(said, tmp_path):
    (tmp_path / "logs").write_text("a file stands where the folder should")
    printed = said(0, tmp_path, log_everything)
    assert printed.count("rank-0.log cannot be written") == 1
    assert "WARNING: rank 0: our warning" in printed


def test_a_full_disk_takes_the_place_of_no_result_and_of_no_error(said, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").symlink_to("/dev/full")
    assert said(0, tmp_path, log_everything).count("rank-0.log cannot be written") == 1

    def fail():
        raise ValueError("a fault of the test")

    with pytest.raises(ValueError, match="a fault of the test"):
        said(0, tmp_path, fail)


def test_a_file_name_that_is_no_text_is_written_all_the_same(said, tmp_path):
    printed = said(0, tmp_path, lambda: logging.getLogger("tinyexp").info("caf\udce9.png"))
    assert "cannot be written" not in printed
    assert "caf\\udce9.png" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_afterwards_logging_is_as_it_was_and_a_process_alone_names_no_rank(monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    rank_log.log_to_console()
    before = root.handlers[:]
    with rank_log.rank_logging(Axis(), None):
        logging.getLogger("tinyexp").info("alone")
        assert root.handlers != before
    assert capsys.readouterr().err == "INFO: alone\n"
    assert root.handlers == before
