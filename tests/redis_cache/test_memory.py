import pytest

from tinyexp.errors import MachineError
from tinyexp.redis_cache import memory
from tinyexp.redis_cache.memory import available_memory_bytes, fitting_memory_gb

ASKED_BY = "redis_cfg.redis_cache_max_memory="


def test_more_memory_than_the_machine_has_free_is_lowered_to_half_of_that_and_announced(monkeypatch):
    assert fitting_memory_gb(0.1, asked_by="--max-memory ") == (0.1, "")
    assert 2**20 < available_memory_bytes() < 2**50
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 24 * 10**9)
    lowered, line = fitting_memory_gb(300, asked_by=ASKED_BY)
    assert lowered == 12
    assert line.startswith(f"{ASKED_BY}300 GB is lowered to 12.0 GB, half of the memory that is free here")


def test_next_to_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 500_000)
    with pytest.raises(MachineError, match=r"max_memory=8 GB: half of the memory that is free here is 0\.2 MB, too little"):
        fitting_memory_gb(8, asked_by=ASKED_BY)


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Write the files of the cgroup that this process is in."""

    def write(line: str, folder: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(f"1:name=systemd:/\n{line}\n")
        monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(memory, "CGROUPS", tmp_path)
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)

    return write


V2, V1 = ("0::/job/step", "job"), ("4:cpu,memory:/job/step", "memory/job")


def test_the_limit_of_a_container_or_of_a_job_counts_as_the_machines(group):
    group(*V2, {"memory.max": "max\n", "memory.current": "1000000\n"})
    machine = available_memory_bytes()
    for limit, left in (("3000000", 2_000_000), ("max", machine), ("500000", 0)):
        group(*V2, {"memory.max": f"{limit}\n", "memory.current": "1000000\n"})
        assert available_memory_bytes() == pytest.approx(left, rel=0.2)
    for limit, left in (("3000000", 2_000_000), ("9223372036854771712", machine)):
        group(*V1, {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": "1000000\n"})
        assert available_memory_bytes() == pytest.approx(left, rel=0.2)


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (V2, ("memory.max", "memory.current", "inactive_file")),
        (V1, ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_files_that_the_kernel_keeps_in_memory_while_nobody_needs_it_count_as_free(group, place, names):
    limit, used, files = names
    group(*place, {limit: "16000000", used: "15900000", "memory.stat": f"anon 1000000\n{files} 14000000\nactive_file 900000\n"})
    assert available_memory_bytes() == 14_100_000
