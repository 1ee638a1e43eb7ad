from tinyexp.observability.status import Status


def test_what_is_no_status_of_this_version_is_none(tmp_path):
    assert Status.read(tmp_path) is None
    assert Status.written_at(tmp_path) == 0
    for text in ("", "[]", '{"phase": "training"}', '{"epoch": 0, "other": 1}'):
        (tmp_path / "status.json").write_text(text)
        assert Status.read(tmp_path) is None
    assert Status.written_at(tmp_path) > 0


def test_what_was_written_is_read_back(tmp_path):
    status = Status(epoch=2, epochs=3, steps_in_epoch=4, steps=12, first_step=1, top1=12.5)
    status.write(tmp_path)
    assert Status.read(tmp_path) == status


def test_a_score_that_is_no_number_leaves_a_status_that_can_be_read(tmp_path):
    Status(epoch=2, epochs=3, steps_in_epoch=4, steps=12, first_step=1, top1=float("nan")).write(tmp_path)
    found = Status.read(tmp_path)
    assert found is not None
    assert (found.epoch, found.top1) == (2, None)
