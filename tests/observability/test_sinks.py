from tinyexp.observability.sinks import curves


def test_numbers_are_points_and_positions_null_and_text_are_not():
    record = {"step": 3, "epoch": 0, "epoch_step": 3, "loss": 1.5, "peak_memory_bytes": 7, "link_share": None, "time": "now"}
    assert curves("step", record) == {"step/loss": 1.5, "step/peak_memory_bytes": 7.0}
    assert all(isinstance(value, float) for value in curves("step", record).values())
