"""Command lines that nobody thought of: never a traceback, never a process, never a file.

FUZZ_EXAMPLES=5000 digs deeper, from another seed each time.
"""

import contextlib
import io
import multiprocessing.process
import os
import shlex
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.experiment import entry
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import compose, key_types, quoted
from tinyexp.redis_cache import config

DIGS = os.environ.get("FUZZ_EXAMPLES")
EXAMPLES = int(DIGS or 250)
NEVER = "this experiment never starts"


@dataclass
class NeverDigits(DigitsDemo):
    """The demo, which refuses to start when all else is well."""

    def problems(self) -> list[str]:
        return [*super().problems(), NEVER]


@dataclass
class NeverMlp(MlpTpExp):
    """The small example, likewise."""

    def problems(self) -> list[str]:
        return [*super().problems(), NEVER]


class Started(BaseException):
    """Not an Exception, so that no handler of the code takes it for an error of its own."""


def refuse(*_: object, **__: object) -> None:
    raise Started


@pytest.fixture
def closed_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and a process in which nothing can be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(config, "find_server", lambda: None)  # asks redis-server for its version
    for owner, name in [
        (subprocess.Popen, "__init__"),
        (os, "fork"),
        (os, "posix_spawn"),
        (os, "system"),
        (multiprocessing.process.BaseProcess, "start"),
        (entry, "run_ray"),
        (entry, "run_local"),
        (entry, "run_external"),
    ]:
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr("ray.init", refuse)
    return tmp_path


KEYS = sorted({*key_types(DigitsDemo), *key_types(MlpTpExp)})
WORDS = r"""
null None none true True yes nan -nan inf -inf NaN .5 1e3 1e-320 1e400 -1 0 1 2 0x10 1_000 007 1.5 99999999999999999999999 -0 +1
1,2 1;2 [] [1] [1,[2]] [nan] [null] {} {a:1} {a:{b:[1]}} [ ] { } (( [[[[
' " '' "a a'b \ \\ a\ - -- ~ "~" "~nobodyhere/x" ".." "a/b" "/"
${oc.env:HOME} "${epochs}" ${nothing} $HOME
${ \${a} ??? "???" a=b == #x a#b é "é" !!python/object:os.system
choice(1,2) glob(*) range(1,5) interval(0,1) shuffle(1,2) sort([3,1]) int(3.7) str(1) bool(x)
tag(a,choice(1)) extend_list(1)
_target_ {_target_:os.system} mp local ray eval bench verify plan help cpu cuda auto ddp fp64 replicated skip elem
"rand-m9-mstd0.5" rand-m-1-n0 rand-n1000000 original-mstdnan augmix-w0 rand- https://x/y.pth ftp://x redis://a:b@c unix://
"""
AWKWARD = [
    *WORDS.split(),
    "",
    " ",
    "1 2",
    "a: b",
    "\t",
    "\r\n",
    '"a\nb"',
    '"a\0b"',
    '"\x1b[31m"',
    '"\ud800"',
    "x" * 300,
    '"' + "x" * 5000 + '"',
]
PREFIXES = ("", "", "", "", "+", "++", "~", " ", "@")
OTHERS = (
    "mode=help",
    "epochs",
    "--help",
    "-h",
    "-m",
    "--multirun",
    "hydra.run.dir=x",
    "epochs@a=1",
    "epochs@_global_=1",
    "=",
    "=1",
)
keys = st.sampled_from(KEYS)
near_keys = st.builds(
    lambda key, at, letters: key[: at % len(key)] + letters + key[at % len(key) + 1 :], keys, st.integers(0), st.text(max_size=2)
)
numbers = st.one_of(st.floats().map(str), st.integers().map(str))
values = st.one_of(st.sampled_from(AWKWARD), st.text(max_size=30), st.text(string.punctuation, max_size=12), numbers)
arguments = st.one_of(
    st.builds("{}{}={}".format, st.sampled_from(PREFIXES), keys, values),
    st.builds("{}={}".format, near_keys, values),
    st.text(max_size=40),
    st.sampled_from(OTHERS),
)


def outcome(experiment: type[TinyExp], given_arguments: Sequence[str]) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = entry.run_command(experiment, given_arguments)
    return status, out.getvalue(), errors.getvalue()


def nothing_is_left(folder: Path) -> bool:
    return list(folder.iterdir()) == []


@settings(
    max_examples=EXAMPLES,
    derandomize=not DIGS,
    database=None,
    deadline=timedelta(seconds=30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from([NeverDigits, NeverMlp]), st.lists(arguments, min_size=1, max_size=3))
def test_any_command_line_ends_in_one_message_without_a_process_or_a_file(closed_world, experiment, given_arguments):
    status, out, errors = outcome(experiment, given_arguments)
    if status == 0:
        assert errors == ""
        assert "Modes: " in out
    else:
        assert status in (2, 3, 4, 5)
        assert out == ""
        assert errors.startswith("error: ")
        assert "Traceback" not in errors
    assert nothing_is_left(closed_world)


TEXTS = [
    "runs/epoch=12.pth",
    "a b",
    "dâta/été",
    "a,b",
    "a#b",
    "~/x",
    "it's",
    'a "b" c',
    "a\\b",
    "a\\",
    'a\\"b',
    "(1)",
    "[1",
    "{a",
    "a: b",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_spelling_that_a_message_proposes_gives_that_text(text):
    [argument] = shlex.split(quoted("resume_from", text))
    plain, _ = compose(DigitsDemo, [argument])
    assert plain["resume_from"] == text
