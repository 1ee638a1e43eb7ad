"""Is the software here, and new enough? The floors are those of pyproject.toml."""

import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tinyexp.doctor.finding import LIMITED, MISSING, OK, Checks, Options

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
NAMED = ("torch", "torchvision", "timm", "ray", "hydra-core", "redis")  # whose versions a bug report needs
OPTIONAL = ("ray", "redis", "tensorboard", "matplotlib", "scikit-learn")  # a run can do without


def python(_: Options) -> tuple[str, str, str]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.platform != "linux":
        return found, LIMITED, "Linux is what is tested; elsewhere processes of a killed run may be left over"
    return found, OK, ""


def packages(_: Options) -> tuple[str, str, str]:
    floors = dict(_floors())
    versions = {name: _version(name) for name in floors}
    absent = [name for name, version in versions.items() if version is None]
    old = [name for name, version in versions.items() if version is not None and _number(version) < _number(floors[name])]
    told = [f"{name} {versions[name]}" for name in NAMED if versions.get(name)]
    told.append(f"{len(versions) - len(absent) - len(told)} more")
    told += [f"no {name}" for name in absent] + [f"{name} {versions[name]} is below {floors[name]}" for name in old]
    if not absent and not old:
        return ", ".join(told), OK, ""
    install = "pip install " + " ".join(f"'{name}>={floors[name]}'" for name in absent + old)
    return ", ".join(told), LIMITED if {*absent, *old} <= {*OPTIONAL} else MISSING, install


CHECKS: Checks = {"Python": python, "packages": packages}


def _floors() -> Iterator[tuple[str, str]]:
    """Name and lowest version of each package that the project asks for."""
    if PYPROJECT.is_file():  # a checkout, whose metadata may be those of an earlier installation
        asked = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        asked = [line for line in metadata.requires("tinyexp") or [] if "extra ==" not in line]
    for line in asked:
        name, _, floor = line.partition(";")[0].partition(">=")
        yield name.strip(), floor.strip() or "0"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _number(version: str) -> tuple[int, ...]:
    """The release of a version, `2.14.1+cpu` as (2, 14, 1); the floors are releases too."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
