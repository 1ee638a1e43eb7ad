"""Case A04 on the keys of the shipped experiment, and the whole kind behind it: values that make no sense."""

import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from tinyexp.errors import ConfigError
from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment import entry
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import build, compose, key_types
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.limits import name_problem


def value_of(argument: str, key: str) -> Any:
    plain, _ = compose(VitTpExp, [argument])
    value: Any = plain
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ('resume_from="runs/epoch=12-step=340.pth"', "runs/epoch=12-step=340.pth"),
        ('resume_from="runs/my dir/ckpt (1), b.pth"', "runs/my dir/ckpt (1), b.pth"),
        ('dataloader_cfg.data_root="dâta/été"', "dâta/été"),
        ("resume_from=null", ""),
        ("optimizer_cfg.clip_grad=null", None),
        ("redis_cfg.redis_cluster_ports=[7000, 7001]", [7000, 7001]),
        ("optimizer_cfg.lr=1e-3", 0.001),
        ("epochs=1e1", 10),
        ('exp_name="1e-3"', "1e-3"),
    ],
)
def test_what_is_written_is_what_the_run_gets(argument, value):
    assert value_of(argument, argument.partition("=")[0]) == value
    assert type(value_of(argument, argument.partition("=")[0])) is type(value)


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("resume_from=runs/epoch=12.pth", """'resume_from="runs/epoch=12.pth"'"""),
        ("resume_from=None", "write resume_from=null for none"),
        ("redis_cfg.redis_cluster_ports=7000,7001", "redis_cfg.redis_cluster_ports=[7000,7001]"),
        ("dataloader_cfg.data_root=~/x", """'dataloader_cfg.data_root="~/x"'"""),
    ],
)
def test_what_is_misread_is_refused_with_the_spelling_that_works(argument, part):
    with pytest.raises(ConfigError) as caught:
        compose(VitTpExp, [argument])
    assert part in str(caught.value)


def test_the_home_folder_is_meant_by_a_tilde_and_no_folder_is_ever_called_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    plain, _ = compose(VitTpExp, ['output_root="~/runs"'])
    assert build(VitTpExp, plain).run_folder == tmp_path / "runs" / "vit_tp_exp"
    plain, _ = compose(VitTpExp, ['dataloader_cfg.data_root="~/x"', 'exp_name="~"', 'resume_from="~/a.pth"'])
    found = "\n".join(build(VitTpExp, plain).problems())
    assert f"no folder {tmp_path}/x/train" in found
    assert "exp_name='~': a plain name is needed" in found
    assert f"no such file ({tmp_path}/a.pth)" in found


@dataclass
class EchoExp(TinyExp):
    """Every rank says what it was given."""

    launcher: str = "local"
    word: str = ""  # any text
    numbers: list[float] = field(default_factory=list)  # any numbers
    limit: float | None = 1.0  # a number or null
    ray_cfg: RayCfg = field(default_factory=lambda: RayCfg(ray_num_worker=2, ray_num_gpus_per_worker=0.0))
    owns_run_folder = property(lambda self: False)  # pyright: ignore[reportIncompatibleMethodOverride] nothing is written

    def run(self) -> str:
        if Path(self.word).name:
            return f"{self.word}|{self.exp_name}|{self.numbers}|{self.limit}"
        return ""

    def report(self, result: Any) -> None:
        print(result)


def test_the_quotes_are_read_once_and_the_ranks_get_the_values(capsys):
    word = "my dir/epoch=1, (2) 'é' \\\"x\\\" None.pth"
    given = [f'word="{word}"', 'exp_name="1e-3"', "numbers=[0.9, 1]", "limit=null"]
    assert entry.run_command(EchoExp, given) == 0
    assert capsys.readouterr().out == "my dir/epoch=1, (2) 'é' \"x\" None.pth|1e-3|[0.9, 1.0]|None\n"


NONSENSE = [(int, "-2"), (int, "99999999999999999999999"), *((float, text) for text in ("nan", "inf", "-inf", "-1", "1e300"))]
IGNORED = ("redis_cfg.",)  # of the cache, which is off; tests/redis_cache/test_config.py has them


def numeric_keys(exp_class: type[TinyExp], kind: type) -> list[str]:
    hints = {key: hint for key, hint in key_types(exp_class).items() if not key.startswith(IGNORED)}
    return [key for key, hint in hints.items() if kind in (get_args(hint) if get_origin(hint) is types.UnionType else (hint,))]


@pytest.mark.parametrize(("kind", "text"), NONSENSE)
@pytest.mark.parametrize("exp_class", [DigitsDemo, MlpTpExp])
def test_a_number_that_makes_no_sense_is_refused_by_its_key_with_what_is_allowed(exp_class, kind, text):
    keys = numeric_keys(exp_class, kind)
    plain, _ = compose(exp_class, [f"{key}={text}" for key in keys])
    told = build(exp_class, plain).problems()
    for key in keys:
        if (key, text) != ("seed", "-2"):  # a seed as good as others
            assert any(line.startswith(f"{key}=") and "a number from" in line for line in told), key


@pytest.mark.parametrize("name", ["..", ".", "a/b", "~", "~x", "-x", ".hidden", " a", "é" * 150])
def test_a_name_that_is_no_plain_file_name_is_refused(name):
    assert name_problem("exp_name", name).startswith("exp_name=")
    assert name_problem("exp_name", "a run (2), é") == ""


def test_the_names_of_a_run_are_plain_and_those_of_its_checkpoints_its_own():
    names = {"exp_name": "~", "checkpoint_cfg.last_ckpt_name": "..", "checkpoint_cfg.previous_ckpt_name": "log.txt"}
    names["checkpoint_cfg.best_ckpt_name"] = "step-00000001.ckpt"
    plain, _ = compose(DigitsDemo, [f'{key}="{name}"' for key, name in names.items()])
    told = build(DigitsDemo, plain).problems()
    for key in names:
        assert any(line.startswith(f"{key}=") for line in told), (key, told)


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "x" * 300, "x/" * 2045])
def test_a_path_that_cannot_exist_is_refused(path):
    keys = ("output_root", "resume_from", "dataloader_cfg.data_root")
    plain, _ = compose(DigitsDemo, [f'{key}="{path}"' for key in keys])
    told = build(DigitsDemo, plain).problems()
    for key in keys:
        [problem] = [line for line in told if line.startswith(key)]
        assert "no user ~nobody-of-that-name" in problem or "the path is too long" in problem


@pytest.mark.parametrize("mode", ["bench", "verify", "train"])
def test_an_odd_batch_under_mixup_is_refused_in_every_mode_that_trains(mode):
    key = "verify_cfg.images_per_replica" if mode == "verify" else "dataloader_cfg.train_batch_size_per_device"
    plain, _ = compose(DigitsDemo, [f"mode={mode}", f"{key}=7"])
    assert any(line.startswith(f"{key}=7 is odd") for line in build(DigitsDemo, plain).problems())


def test_more_processes_than_the_machine_can_hold_are_refused():
    plain, _ = compose(DigitsDemo, ["launcher=local", "ray_cfg.ray_num_worker=100000"])
    found = [
        line for line in build(DigitsDemo, plain).problems() if line.startswith("ray_cfg.ray_num_worker=100000: launcher=local")
    ]
    assert len(found) == 1
