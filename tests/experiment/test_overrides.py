from dataclasses import dataclass, field

import pytest

from tinyexp.errors import ConfigError
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.overrides import Override, build, compose, key_types


@dataclass
class NestedCfg:
    """Some nested keys."""

    lr: float = 5e-4  # a rate
    clip_grad: float | None = None  # a norm; null: off
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # two of them


@dataclass
class ToyExp(TinyExp):
    """A toy."""

    epochs: int = 3
    fast: bool = False
    resume_from: str = ""
    data_root: str = "./data"
    optimizer_cfg: NestedCfg = field(default_factory=NestedCfg)

    def run(self) -> None: ...


def value_of(*arguments: str) -> object:
    _, overrides = compose(ToyExp, arguments)
    return overrides[-1].value


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(ToyExp, arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [  # case A04
        ('resume_from="runs/epoch=12-step=340.pth"', "runs/epoch=12-step=340.pth"),
        ('resume_from="runs/my dir/ckpt (1), b.pth"', "runs/my dir/ckpt (1), b.pth"),
        ('data_root="dâta/été"', "dâta/été"),
        ("resume_from=null", ""),
        ("optimizer_cfg.clip_grad=null", None),
        ("optimizer_cfg.betas=[0.9, 0.95]", [0.9, 0.95]),
        ("optimizer_cfg.lr=1e-3", 0.001),
        ('exp_name="1e-3"', "1e-3"),
        ("exp_name=1e-3", "1e-3"),
        ("exp_name=true", "true"),
        ("exp_name=007", "007"),
        ('data_root="~/x"', "~/x"),
        ("epochs=10", 10),
        ("epochs=1e1", 10),
        ("epochs=3.0", 3),
        ("fast=true", True),
        ("exp_name= 1e-3 ", "1e-3"),
        ("resume_from= NULL ", ""),
        ('exp_name="NONE"', "NONE"),
        ('exp_name=" None"', " None"),
    ],
)
def test_an_override_gives_the_value_that_was_written(argument, value):
    assert value_of(argument) == value


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("resume_from=runs/epoch=12.pth", ["resume_from", """'resume_from="runs/epoch=12.pth"'"""]),
        ("resume_from=None", ["resume_from=null"]),
        ("resume_from= None ", ["got the word None; write resume_from=null", """'resume_from="None"'"""]),
        ("resume_from=NONE", ["got the word NONE; write resume_from=null"]),
        ("optimizer_cfg.betas=0.9,0.95", ["optimizer_cfg.betas=[0.9,0.95]"]),
        ("optimizer_cfg.lrr=1", ["optimizer_cfg.lrr: no such key", "nearest: optimizer_cfg.lr"]),
        ("+optimizer_cfg.lrr=1", ["optimizer_cfg.lrr: no such key", "optimizer_cfg.lr"]),
        ("lr=1", ["lr: no such key", "optimizer_cfg.lr"]),
        ("+epochs=1", ["write epochs=<value>"]),
        ("~epochs", ["key=value"]),
        ("optimizer_cfg=1", ["optimizer_cfg: no such key", "optimizer_cfg.lr"]),
        ("epochs=1.5", ["epochs: got '1.5', needs a whole number"]),
        ("epochs=null", ["epochs: got 'null', needs a whole number"]),
        ("fast=maybe", ["fast: got 'maybe', needs true or false"]),
        ("optimizer_cfg.lr=abc", ["optimizer_cfg.lr: got 'abc', needs a number"]),
        ("optimizer_cfg.clip_grad=abc", ["needs a number or null"]),
        ("optimizer_cfg.betas=[a,b]", ["needs a list"]),
        ("--epochs", ["not of the form key=value"]),
        ("epochs", ["not of the form key=value"]),
        ("epochs=", ["epochs: got '', needs a whole number"]),
        ("=3", ["'=3' has no key before its ="]),
        ("epochs=${nothing}", ["epochs: got '${nothing}', and ${...} is not filled in"]),
        ('data_root="${oc.env:HOME}/x"', ["${...} is not filled in", 'data_root="$HOME/images"']),
        ("exp_name=???", ["stands for a value that is missing"]),
        ('data_root="a\x00b"', ["holds a control character"]),
        ('data_root="a\nb"', ["holds a control character"]),
        ('data_root="a\udc80b"', ["bytes that are no UTF-8"]),
        (f"data_root={'x' * 5000}", ["the value has 5,000 characters; up to 4,096 are allowed"]),
        ("epochs=true", ["epochs: got 'true', needs a whole number"]),
        ("optimizer_cfg.lr=true", ["optimizer_cfg.lr: got 'true', needs a number"]),
        ("optimizer_cfg.betas=[true]", ["needs a list"]),
        ("optimizer_cfg.betas=1", ["needs a list"]),
        ("fast=2", ["fast: got '2', needs true or false"]),
        ("epochs@other=3", ["epochs@other: no such key"]),
        ("epochs=choice(1,2)", ["a choice of values"]),
        ("epochs=glob(*)", ["epochs"]),
        ("epochs={_target_:os.system}", ["epochs", "needs a whole number"]),
        ("epochs=inf", ["needs a whole number"]),
        ("hydra.run.dir=/tmp", ["hydra.run.dir: no such key"]),
    ],
)
def test_a_wrong_override_is_named_with_what_would_be_right(argument, parts):
    message = refusal(argument)
    for part in parts:
        assert part in message, message


def test_all_wrong_overrides_are_named_at_once():
    message = refusal("epochs=x", "lrr=1", "fast=maybe")
    assert message.count("\n") == 3


def test_the_plain_configuration_survives_a_second_journey_unchanged():
    path = "runs/my dir/epoch=1, (2).pth"
    plain, overrides = compose(ToyExp, [f'resume_from="{path}"', "optimizer_cfg.lr=2e-3"])
    experiment = build(ToyExp, plain)
    assert isinstance(experiment, ToyExp)
    assert experiment.resume_from == path
    assert experiment.optimizer_cfg.lr == 2e-3
    assert overrides[1] == Override("optimizer_cfg.lr", 5e-4, 2e-3)


def test_keys_carry_their_types_in_the_order_of_the_fields():
    keys = key_types(ToyExp)
    assert keys["optimizer_cfg.clip_grad"] == float | None
    assert list(keys)[-3:] == ["optimizer_cfg.lr", "optimizer_cfg.clip_grad", "optimizer_cfg.betas"]
