"""The house's rules, read from the source: imports go downwards, the front door is light, and the README's tree is the tree."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinyexp"

STOREYS = {
    "__main__": 9,
    "doctor": 9,
    "examples": 8,
    "report": 7,
    "experiment": 6,
    "launch": 5,
    "bench": 5,
    "training": 4,
    "accelerators": 3,
    "models": 2,
    "redis_cache": 2,
    "parallel": 1,
    "data": 1,
    "observability": 1,
    "wrapped": 1,
    "process": 0,
    "signals": 0,
    "errors": 0,
    "masking": 0,
    "limits": 0,
    "streams": 0,
    "keys": 0,
    "sessions": 0,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Full names of everything that the file imports from this package, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [node.module or ""]
        found.update(name for name in names if name.partition(".")[0] == "tinyexp")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_from_lower_storeys_or_its_own_room(path):
    room = room_of(path)
    if room == "__init__":
        return
    for name in imports_of(path):
        other = name.split(".")[1] if "." in name else ""
        if other in ("", room, "errors"):  # the package itself holds only the version and lazy names
            continue
        assert STOREYS[other] < STOREYS[room], f"{room} (storey {STOREYS[room]}) imports {name} (storey {STOREYS[other]})"


def test_every_room_has_a_storey():
    assert {room_of(path) for path in FILES} - {"__init__"} <= STOREYS.keys()


def test_of_the_models_only_the_plan_looks_down_at_parallel():
    for path in sorted((PACKAGE / "models").rglob("*.py")):
        if path.name != "plan.py":
            assert not any(name.startswith("tinyexp.parallel") for name in imports_of(path)), path


def test_models_and_data_know_no_process_group():
    for room in ("models", "data"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            if path.name == "plan.py":  # names styles, starts nothing
                continue
            assert "torch.distributed" not in path.read_text(encoding="utf-8"), path


def test_only_process_reads_the_rank_variables():
    words = re.compile(r"""environ.*["'](RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)["']""")
    for path in FILES:
        if path.name != "process.py":
            assert not words.search(path.read_text(encoding="utf-8")), path


def test_checkpoints_are_only_ever_read_as_data():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text, path
        if room_of(path) != "launch":  # whose processes report to each other in bytes that they wrote themselves
            assert "pickle.load" not in text, path


@pytest.mark.parametrize("module", ["tinyexp", "tinyexp.__main__", "tinyexp.doctor.command"])
def test_the_front_door_loads_neither_torch_nor_ray_nor_redis(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'ray', 'redis', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_tree_in_the_readme_is_the_tree():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme.split("<!-- tree -->")[1].split("<!-- /tree -->")[0]
    told = set(re.findall(r"^  ([a-z_]+)/ ", tree, re.MULTILINE))
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("**/*.py"))}
    assert told == there


def test_the_architecture_page_names_every_room_and_its_storey():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for line in re.findall(r"^(\d)  (.+?)(?:   .*)?$", page, re.MULTILINE):
        for room in line[1].split():
            assert STOREYS[room] == int(line[0]), room
    told = {room for line in re.findall(r"^\d  (.+?)(?:   .*)?$", page, re.MULTILINE) for room in line.split()}
    there = {room_of(path) for path in FILES} - {"__init__"}
    assert told == there
