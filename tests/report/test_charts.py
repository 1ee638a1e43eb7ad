import json
import math
import re

from tinyexp.report.charts import FRAME, MOST_POINTS, Chart, Curve, chart, points, thinned


def drawn(values: list[float | None], **options) -> Chart:
    found = chart("Loss", [Curve("training", list(enumerate(values)), 1)], **options)
    assert found is not None
    return found


def test_a_curve_fills_its_frame_from_the_first_to_the_last_point_and_the_lowest_to_the_highest():
    line = drawn([4.0, 1.0, 2.0, 5.0]).lines[0]
    xs, ys = zip(*line.dots, strict=True)
    assert (xs[0], xs[-1]) == (FRAME["left"], FRAME["right"])
    assert (max(ys), min(ys)) == (FRAME["bottom"], FRAME["top"])
    assert ys[1] > ys[2] > ys[0] > ys[3]  # upside down, as SVG has it


def test_an_unknown_value_is_a_gap_and_a_lonely_one_is_still_seen():
    assert len(re.findall("M", drawn([1.0, 2.0, None, 3.0, 4.0]).lines[0].path)) == 2
    lonely = drawn([1.0] * 60 + [None, 2.0, None] + [1.0] * 60).lines[0]
    assert len(lonely.dots) == 1
    assert len(drawn([2.5]).lines[0].dots) == 1


def test_numbers_that_are_none_are_left_out_and_nothing_known_is_no_chart():
    rows = [{"epoch": 0, "loss": math.nan}, {"epoch": 1, "loss": None}, {"epoch": 2}, {"epoch": 3, "loss": "high"}]
    assert points(rows, "epoch", "loss") == [(0, None), (1, None), (2, None), (3, None)]
    assert chart("Loss", [Curve("training", points(rows, "epoch", "loss"), 1)]) is None


def test_a_long_curve_keeps_its_mean_and_its_end():
    values: list[tuple[float, float | None]] = [(step, float(step % 2)) for step in range(100_000)]
    short = thinned(values)
    assert 100 < len(short) <= MOST_POINTS
    assert short[-1][0] == 99_999
    assert all(value is not None and abs(value - 0.5) < 0.01 for _, value in short)


def test_what_the_pointer_says_and_what_is_read_aloud_are_the_values():
    found = drawn([3.0, 0.00025], unit="%", from_zero=True)
    told = json.loads(found.values)
    assert told["x"] == [FRAME["left"], FRAME["right"]]
    assert told["said"] == [["epoch 0", "training: 3 %"], ["epoch 1", "training: 0.00025 %"]]
    assert found.described == "Loss: training from 3 % at epoch 0 to 0.00025 % at 1."
    assert found.y_ticks[0] == (FRAME["bottom"], "0")
