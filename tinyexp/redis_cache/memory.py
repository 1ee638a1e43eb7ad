"""How much memory servers may take on this machine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tinyexp.errors import MachineError

GB = 10**9
LEAST_GB = 0.1  # a cache below it would hold a thousand images
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def available_memory_bytes() -> int:
    """Memory that processes of this machine, of this container, or of this job of a scheduler, can take without swapping."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return min([int(fields["MemAvailable"].split()[0]) * 1024, *_left_in_groups()])


def fitting_memory_gb(asked_gb: float, *, asked_by: str) -> tuple[float, str]:
    """The memory that servers of this machine get, and, where that is less than `asked_by` asks, the line that says so.

    Raises: MachineError if next to nothing is free.
    """
    half_gb = available_memory_bytes() / 2 / GB
    if asked_gb <= half_gb:
        return asked_gb, ""
    if half_gb < LEAST_GB:
        raise MachineError(
            f"{asked_by}{asked_gb:g} GB: half of the memory that is free here is {1000 * half_gb:.1f} MB, too little "
            "for a cache; free some, raise the memory limit of this container or job, or go without the cache"
        )
    return half_gb, (
        f"{asked_by}{asked_gb:g} GB is lowered to {half_gb:.1f} GB, half of the memory that is free here; "
        "what does not fit is read from disk"
    )


def _left_in_groups() -> Iterator[int]:
    """What is left of each limit on this process. A limit may be set at any level, by version 2 of cgroups or by version 1."""
    for line in OWN_CGROUPS.read_text().splitlines():
        number, controllers, own = line.split(":", 2)
        if number == "0":
            root, limit, used, files = CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            files = "total_inactive_file"
        else:
            continue
        for group in (Path(own), *Path(own).parents):
            folder = root / str(group).lstrip("/")
            with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                yield max(0, left + _reclaimable(folder, files))


def _reclaimable(group: Path, name: str) -> int:
    """Bytes of files that are counted as used, and that the kernel drops before it refuses memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
