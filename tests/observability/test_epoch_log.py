import json

import pytest

from tests.helpers.disk import full_beyond
from tinyexp.observability.epoch_log import EpochLog, epoch_rows
from tinyexp.observability.sinks import RecordsLost
from tinyexp.observability.status import Status
from tinyexp.observability.watch import RunWatch


def epochs(folder):
    return [row["epoch"] for row in epoch_rows(folder)]


def written(folder, *rows, first_epoch=0):
    log = EpochLog(folder, first_epoch=first_epoch)
    for epoch in rows:
        log.write_epoch({"epoch": epoch, "test_acc1": 1.0}, step=4 * epoch)
    log.close()
    return epochs(folder)


def test_each_epoch_is_one_line_and_a_run_keeps_those_before_its_first_epoch(tmp_path):
    assert epochs(tmp_path) == []
    assert written(tmp_path, 0, 1) == [0, 1]
    assert written(tmp_path, first_epoch=1) == [0]
    assert written(tmp_path) == []


def test_what_is_no_row_is_dropped_as_a_line_that_a_killed_run_has_left_unfinished(tmp_path):
    written(tmp_path, 0)
    with open(tmp_path / "log.txt", "ab") as file:
        file.write(b'7\n{"other": 1}\n\xff\n{"epoch": 1, "te')
    assert written(tmp_path, 2, first_epoch=2) == [0, 2]
    assert [json.loads(line)["epoch"] for line in (tmp_path / "log.txt").read_text().splitlines()] == [0, 2]


def test_a_line_that_the_disk_does_not_take_is_written_with_the_next(tmp_path):
    log = EpochLog(tmp_path, first_epoch=0)
    log.write_epoch({"epoch": 0}, 4)
    for epoch in (1, 2):
        with (
            full_beyond(20),
            pytest.raises(RecordsLost, match=r"No space left.*; each line is tried again") as raised,
        ):
            log.write_epoch({"epoch": epoch}, 4)
        assert raised.value.count == 0
    assert epochs(tmp_path) == [0]
    log.write_epoch({"epoch": 3}, 4)
    assert epochs(tmp_path) == [0, 1, 2, 3]
    log.close()
    assert epochs(tmp_path) == [0, 1, 2, 3]


def test_a_log_that_cannot_be_begun_keeps_what_an_earlier_run_has_written_and_is_begun_later(tmp_path):
    written(tmp_path, 0, 1)
    with full_beyond(5):
        log = EpochLog(tmp_path, first_epoch=1)
    assert epochs(tmp_path) == [0, 1]
    log.write_epoch({"epoch": 1}, 8)
    assert epoch_rows(tmp_path) == [{"epoch": 0, "test_acc1": 1.0}, {"epoch": 1}]


def test_what_the_disk_has_not_taken_by_the_end_of_the_run_is_said_once_and_counted(tmp_path, caplog):
    now = Status(epoch=0, epochs=2, steps_in_epoch=4, steps=8, first_step=0)
    with full_beyond(5), RunWatch(now, openers={"log.txt": lambda: EpochLog(tmp_path, first_epoch=0)}) as watch:
        for epoch in range(3):
            watch.write_epoch({"epoch": epoch}, 4)
        assert +watch.lost == {}  # there may be room yet
    assert watch.lost == {"log.txt": 3}
    assert len(caplog.records) == 1
    assert "log.txt does not take what the run tells it" in caplog.text
    assert epochs(tmp_path) == []
