import pytest

from tinyexp.report.charts import points, thinned
from tinyexp.report.step_means import MOST_MEANS, OF_A_SECOND, step_means


def test_a_short_run_is_read_as_it_is():
    records = [{"step": 0, "loss": 2.5, "other": 1}, {"step": 1, "loss": None}, {"step": 2, "loss": "many"}]
    assert step_means(records, ("step", "loss")) == [
        {"step": step, "loss": loss} for step, loss in ((0, 2.5), (1, None), (2, None))
    ]


def test_a_long_run_is_kept_in_few_rows_each_the_mean_of_its_steps():
    num_steps = 8 * MOST_MEANS + 3
    rows = step_means(({"step": step, "loss": float(step)} for step in range(num_steps)), ("step", "loss"))
    assert MOST_MEANS / 2 <= len(rows) <= MOST_MEANS
    size = rows[0]["step"] + 1
    assert [row["step"] for row in rows[:-1]] == [size * (number + 1) - 1 for number in range(len(rows) - 1)]
    assert all(row["loss"] == row["step"] - (size - 1) / 2 for row in rows[:-1])
    assert rows[-1]["step"] == num_steps - 1


@pytest.mark.parametrize("entry", OF_A_SECOND)
def test_what_is_told_for_each_second_is_that_of_all_the_seconds(entry):
    seconds = (0.1, 0.1, 0.1, 1.7)
    records = [{"step": step, "step_s": seconds[step % 4], entry: 64 / seconds[step % 4]} for step in range(4 * MOST_MEANS)]
    rows = step_means(records, ("step", "step_s", entry))
    assert [y for _, y in thinned(points(rows, "step", entry))] == pytest.approx([128] * len(rows))
    assert len(rows) == MOST_MEANS / 2  # of eight steps each
    assert all(row[entry] == pytest.approx(128) and row["step_s"] == pytest.approx(0.5) for row in rows)


def test_a_step_of_which_a_figure_or_its_seconds_are_not_known_counts_in_no_mean_of_it():
    records = [{"step": step, "step_s": 0.5, "images_per_s": 10.0} for step in range(2 * MOST_MEANS)]
    records[0] |= {"images_per_s": None}
    records[3] |= {"step_s": "long", "images_per_s": 1000.0}
    rows = step_means(records, ("step", "step_s", "images_per_s"))
    assert rows[0]["images_per_s"] == rows[1]["images_per_s"] == pytest.approx(10.0)
    assert step_means([{"step": 0, "images_per_s": 5.0}], ("step", "images_per_s")) == [{"step": 0, "images_per_s": None}]
