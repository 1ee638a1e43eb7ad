"""What the pages name exists: the target of every link, every file, command and key."""

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page, read_page
from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import compose, key_types

EXPERIMENTS: dict[str, type[TinyExp]] = {each.__module__: each for each in (VitTpExp, DigitsDemo, MlpTpExp)}
KEYS = {key for experiment in EXPERIMENTS.values() for key in key_types(experiment)}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
BY_NAME = {path.name: path for folder in ("tinyexp", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}

# What a page may name, and how it is written there.
MODULES = r"python3? -m ([\w.]+)"
MAKE = r"\bmake ([a-z][\w-]*)"
FILES = r"(?<![\w/])((?:tests|benchmarks|docs|tinyexp)/[\w/.]*\w)"
PYTHON_FILES = r"^([\w/]+\.py)(?:: (\w+))?$"
SCRIPT_FILES = r"(?:python3?|torchrun [^\n]*?) ([\w/]+\.py)\b"
CONSOLE_SCRIPTS = r"\b(tinyexp-[\w-]+)\b(?!\.)"
DOTTED_KEYS = r"\b([a-z_]+_cfg\.\w+)"
RUNS = r"-m (tinyexp\.examples\.\w+)([^\n|]*)"

page_of_each = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def found(pattern: str, page: Page) -> list[str]:
    return [name for piece in page.code for name in re.findall(pattern, piece, re.MULTILINE)]


def test_the_patterns_find_what_the_pages_name():
    pages = [read_page(path) for path in PAGES]
    for pattern, example in [
        (MODULES, "tinyexp.examples.vit_tp_exp"),
        (MAKE, "demo"),
        (FILES, "tests/examples/test_resume.py"),
        (PYTHON_FILES, ("training/epoch.py", "train_step")),
        (SCRIPT_FILES, "block.py"),
        (CONSOLE_SCRIPTS, "tinyexp-run-with-redis"),
        (DOTTED_KEYS, "redis_cfg.redis_cache_enabled"),
        (RUNS, ("tinyexp.examples.vit_tp_exp", " resume_from=auto max_restarts=3")),
    ]:
        assert example in [name for page in pages for name in found(pattern, page)], pattern
    assert "vit_tp.md#l4-speed-and-memory" in [link for page in pages for link in page.links]


@page_of_each
def test_every_link_leads_to_a_file_and_a_heading_that_exist(path):
    for link in read_page(path).links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in read_page(target).anchors, link


@page_of_each
def test_every_file_that_is_named_exists(path):
    page = read_page(path)
    for name in found(FILES, page):
        assert (ROOT / name).exists(), name
    for name, definition in found(PYTHON_FILES, page):
        file = next(
            (place for place in (ROOT / name, ROOT / "tinyexp" / name, BY_NAME.get(name)) if place and place.exists()), None
        )
        assert file or is_written_by_the_reader(name, path), name
        if definition:
            assert file and definition in names_defined_in(file), f"{name}: {definition}"


@page_of_each
def test_every_command_that_is_named_exists(path):
    page = read_page(path)
    for module in found(MODULES, page):
        spec = importlib.util.find_spec(module)
        assert spec and (not spec.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__")), module
    for target in found(MAKE, page):
        assert target in TARGETS, f"make {target}"
    for script in found(CONSOLE_SCRIPTS, page):
        module, _, function = SCRIPTS[script].partition(":")
        assert callable(getattr(importlib.import_module(module), function)), script
    for name in found(SCRIPT_FILES, page):
        assert (ROOT / name).exists() or is_written_by_the_reader(name, path), name


@page_of_each
def test_every_key_that_is_named_exists(path):
    for key in found(DOTTED_KEYS, read_page(path)):
        assert key in KEYS, key


@page_of_each
def test_every_command_of_an_experiment_is_understood(path):
    for module, rest in found(RUNS, read_page(path)):
        written = re.sub(r"\[.* \.\.\.\]", "", re.sub(r"<[^>]*>", "value", rest))  # what stands for a value, or for more of them
        arguments = shlex.split(written.rstrip(" '") if written.count("'") % 2 else written, comments=True)
        plain, _ = compose(EXPERIMENTS[module], arguments)
        assert plain["mode"] in (*EXPERIMENTS[module].modes, "help"), rest


def is_written_by_the_reader(name: str, path: Path) -> bool:
    """Whether the page tells its reader to save a block under that name."""
    return bool(re.search(rf"[Ss]ave [^.]*`{re.escape(name)}`", path.read_text(encoding="utf-8")))


def names_defined_in(file: Path) -> set[str]:
    tree = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)}
