import time

from tinyexp.parallel.waiting import Waiting


def test_the_seconds_of_its_blocks_add_up():
    waiting = Waiting()
    for _ in range(2):
        with waiting:
            time.sleep(0.02)
        time.sleep(0.5)
    assert 0.04 <= waiting.seconds < 0.5
