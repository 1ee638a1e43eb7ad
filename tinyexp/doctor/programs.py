"""The programs that a run may start: Ray and redis-server."""

import re
import shutil
import socket
import tempfile
from importlib import metadata

from tinyexp.doctor.finding import GB, LIMITED, MISSING, OK, Checks, Options
from tinyexp.errors import MachineError
from tinyexp.launch.ray_cluster import FOLDER_PREFIX, FOLDER_ROOT, OBJECT_STORE_BYTES, cluster_address
from tinyexp.redis_cache.server import find_server

WITHOUT_RAY = "or use launcher=local or torchrun, which need no Ray"
ANSWER_S = 3.0
LONGEST_SOCKET = 107  # bytes of a unix socket's path
SOCKET = "{folder}/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"  # of Ray 2.60
# Releases with the fixes of CVE-2025-49844 and its like, flaws of the scripting language
MENDED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}


def ray(_: Options) -> tuple[str, str, str]:
    """Whether Ray can be imported, and has what it needs to start; starting it would take longer than all other checks."""
    try:
        version = metadata.version("ray")
        import ray  # noqa: F401
    except Exception as error:  # whatever a broken installation raises
        return f"cannot be imported: {type(error).__name__}: {error}", MISSING, f"pip install 'ray>=2.60', {WITHOUT_RAY}"
    try:
        address = cluster_address()
    except MachineError as error:
        return f"{version}; {error}", MISSING, "change RAY_ADDRESS"
    return _cluster(version, address) if address else _own(version)


def _cluster(version: str, address: str) -> tuple[str, str, str]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return f"{version}, RAY_ADDRESS={address}, which Ray looks up itself", OK, ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        advice = f"unset RAY_ADDRESS to run on this machine, or set what `ray start --head` printed, {WITHOUT_RAY}"
        return f"{version}; nothing answers at RAY_ADDRESS={address} ({error})", MISSING, advice
    return f"{version}, the cluster at {address} answers", OK, ""


def _own(version: str) -> tuple[str, str, str]:
    try:
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=FOLDER_ROOT) as folder:
            length = len(SOCKET.format(folder=folder))
    except OSError as error:
        return f"{version}; {FOLDER_ROOT} cannot be written: {error.strerror}", MISSING, f"make it writable, {WITHOUT_RAY}"
    if length > LONGEST_SOCKET:
        return f"{version}; its sockets' paths have {length} bytes", MISSING, f"{LONGEST_SOCKET} are allowed; {WITHOUT_RAY}"
    free = shutil.disk_usage(FOLDER_ROOT).free
    found = f"{version}, {free / GB:.1f} GB free in {FOLDER_ROOT}, socket paths of {length} bytes (not started here)"
    if free < 2 * OBJECT_STORE_BYTES:
        return found, MISSING, f"make room in {FOLDER_ROOT}, {WITHOUT_RAY}"
    return found, OK, ""


def redis_server(_options: Options) -> tuple[str, str, str]:
    try:
        binary = find_server()
    except MachineError as error:
        what, _, advice = str(error).partition("; ")
        return what, MISSING, f"only the byte cache needs it: {advice}"
    found = f"{binary.version}, {binary.path}"
    numbers = [int(digits) for digits in re.findall(r"\d+", binary.version)[:3]]
    release, patch = (numbers[0], numbers[1]), numbers[2] if len(numbers) > 2 else 0
    if release <= max(MENDED) and patch < MENDED.get(release, 1 << 16):
        fixed = ", ".join(f"{major}.{minor}.{least}" for (major, minor), least in MENDED.items())
        return (
            f"{found}, older than the fixes of its scripting flaws ({fixed}), unless your system has taken them over",
            LIMITED,
            "servers of a run allow no scripting and are not open to them; an outside server should be updated",
        )
    return found, OK, ""


CHECKS: Checks = {"Ray": ray, "redis-server": redis_server}
