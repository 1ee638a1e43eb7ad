from types import SimpleNamespace

from tinyexp.parallel import waiting


def test_the_seconds_of_its_blocks_add_up(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now_s))
    counter = waiting.Waiting()
    for _ in range(2):
        with counter:
            now_s += 0.25
        now_s += 8.0
    assert counter.seconds == 0.5
