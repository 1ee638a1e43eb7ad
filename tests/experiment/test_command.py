import importlib.util
import os
import shlex
import subprocess
import sys
import types
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.command import argument, changed_keys, command_words
from tinyexp.experiment.overrides import compose


@dataclass
class Inner:
    names: list[str] = field(default_factory=list)
    clip: float | None = 1.0


@dataclass
class SomeExp(TinyExp):
    rate: float = 0.5
    on: bool = True
    text: str = "a"
    resume_from: str = ""
    inner: Inner = field(default_factory=Inner)

    def run(self) -> None:
        pass


HARD = [
    "",
    "null",
    "None",
    "true",
    "1e-3",
    "it's",
    'a "b"',
    "a\\b",
    "end\\",
    '\\"',
    "a,b=c (d)",
    "~/x",
    "#",
    "dâta/été",
]


@pytest.mark.parametrize("text", HARD)
def test_the_command_reads_back_as_the_same_run_whatever_a_text_holds(text):
    experiment = SomeExp(text=text, rate=1e-7, on=False, inner=Inner(names=[text, "b"], clip=None))
    words = shlex.split(shlex.join(command_words(experiment)))
    assert words[:3] == ["python", "-m", SomeExp.__module__]
    plain, _ = compose(SomeExp, words[3:])
    assert {key: plain[key] for key in ("text", "rate", "on", "inner")} == {
        key: asdict(experiment)[key] for key in ("text", "rate", "on", "inner")
    }


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).filter(lambda text: "${" not in text))
def test_any_text_is_read_back(text):
    assert compose(SomeExp, [argument("text", text)])[0]["text"] == text


def test_only_what_differs_is_named_and_a_continued_run_is_repeated_from_its_start():
    experiment = SomeExp(rate=0.25, resume_from="auto")
    assert changed_keys(experiment) == {"rate": (0.25, 0.5), "resume_from": ("auto", "")}
    assert command_words(experiment)[3:] == ["rate=0.25"]
    assert command_words(SomeExp(mode="eval", resume_from="a.ckpt"))[3:] == ["mode=eval", "resume_from=a.ckpt"]


def test_no_secret_of_a_url_is_in_the_command():
    words = command_words(SomeExp(text="https://me:hunter2@host/a?token=hunter2&b=c"))
    assert words[3:] == ['text="https://me:***@host/a?token=***&b=***"']


SCRIPT = """
import shlex
from dataclasses import dataclass
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.command import command_words
from tinyexp.experiment.entry import store_and_run_exp

@dataclass
class MyExp(TinyExp):
    def run(self):
        print(shlex.join(command_words(self)))

if __name__ == "__main__":
    store_and_run_exp(MyExp)
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "sub folder" / "my_exp.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def test_a_script_in_another_folder_is_run_again_by_its_path(tmp_path, script):
    words = [sys.executable, "sub folder/my_exp.py", "seed=3"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "python 'sub folder/my_exp.py' seed=3\n"


def test_a_module_is_run_again_by_its_name_and_a_script_of_elsewhere_by_its_whole_path(tmp_path, script, monkeypatch):
    spec = importlib.util.spec_from_file_location("my_exp", script)
    assert spec is not None
    assert spec.loader is not None
    module, main = importlib.util.module_from_spec(spec), types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "my_exp", module)
    monkeypatch.setitem(sys.modules, "__main__", main)
    spec.loader.exec_module(module)
    (tmp_path / "elsewhere").mkdir()
    for folder, told in ((script.parent, "my_exp.py"), (tmp_path / "elsewhere", str(script))):
        monkeypatch.chdir(folder)
        assert command_words(module.MyExp()) == ["python", told]
    main.__spec__ = spec
    assert command_words(module.MyExp()) == ["python", "-m", "my_exp"]


def test_a_default_that_the_environment_gave_is_named_because_another_shell_may_give_none(monkeypatch):
    monkeypatch.setenv("IMAGENET_HOME", "/images")
    assert "dataloader_cfg.data_root=/images" in command_words(VitTpExp())
    monkeypatch.delenv("IMAGENET_HOME")
    assert command_words(VitTpExp())[3:] == []


def test_ranks_that_torchrun_started_are_repeated_by_torchrun(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    words = command_words(SomeExp(launcher="mp", rate=0.25))
    assert words == ["torchrun", "--standalone", "--nproc-per-node=2", "-m", SomeExp.__module__, "rate=0.25"]
