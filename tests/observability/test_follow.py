import json

from tinyexp.observability.follow import StepFollower
from tinyexp.observability.step_log import StepLog


def steps(records):
    return [record["step"] for record in records]


def test_records_come_once_as_they_are_written(tmp_path):
    follower = StepFollower(tmp_path)
    assert follower.poll(0) == []
    log = StepLog(tmp_path, first_step=0)
    log.write_step({"step": 0})
    log.write_step({"step": 1})
    assert steps(follower.poll(0)) == [0, 1]
    with open(log.path, "a") as file:
        file.write('{"step": 2}\n{"st')
    assert steps(follower.poll(0)) == [2]
    with open(log.path, "a") as file:
        file.write('ep": 3}\n')
    assert steps(follower.poll(0)) == [3]
    log.close()
    log = StepLog(tmp_path, first_step=1)  # ranks were started again, from an earlier step
    log.write_step({"step": 1})
    assert steps(follower.poll(1)) == [1]
    log.close()


def test_of_a_long_file_only_the_newest_records_of_this_run_are_read(tmp_path):
    lines = [json.dumps({"step": step, "filler": "x" * 200}) + "\n" for step in range(1000)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    found = steps(StepFollower(tmp_path).poll(0))
    assert found[-1] == 999
    assert 10 < len(found) < 100
    assert steps(StepFollower(tmp_path).poll(998)) == [998, 999]
