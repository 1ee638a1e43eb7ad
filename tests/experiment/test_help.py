import dataclasses
import re

from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.help import comments, help_page
from tinyexp.experiment.overrides import compose, key_types


def test_the_page_shows_every_key_with_its_type_default_and_meaning():
    page = help_page(VitTpExp, [])
    for key in key_types(VitTpExp):
        line = next((line for line in page.splitlines() if re.match(rf"  {re.escape(key)} ", line)), None)
        assert line is not None, key
        assert len(re.split(r"  +", line.strip())) >= 4, f"{key} has no meaning: {line}"


def test_the_page_shows_what_the_command_line_changed():
    _, overrides = compose(VitTpExp, ["epochs=7", "mode=help"])
    page = help_page(VitTpExp, overrides)
    assert "epochs = 7  (default 300)" in page
    assert "nothing" in help_page(VitTpExp, []).splitlines()[-1]


def test_a_password_in_a_url_is_not_shown():
    _, overrides = compose(VitTpExp, ["redis_cfg.redis_url=redis://me:hunter2@127.0.0.1:6379", "mode=help"])
    page = help_page(VitTpExp, overrides)
    assert "hunter2" not in page
    assert "redis_cfg.redis_url = 'redis://me:***@127.0.0.1:6379'" in page


def test_the_page_ends_with_what_departs_from_the_recipe():
    page = help_page(VitTpExp, [], VitTpExp(epochs=7).departures())
    assert "Departures of this run from the official recipe:\n  epochs=7, official 300: " in page
    assert "Departures" not in help_page(VitTpExp, [], [])


def test_the_demo_shows_its_own_defaults_and_the_inherited_meanings():
    page = help_page(DigitsDemo, [])
    assert re.search(r"module_cfg\.model_name +str +deit_digits_patch8_32 +a preset", page)
    assert re.search(r"max_train_steps +int +-1 +optimizer steps", page)


def test_every_field_of_every_configuration_has_a_trailing_comment():
    for section in (VitTpExp, MlpTpExp, *(field.type for field in dataclasses.fields(VitTpExp))):
        if dataclasses.is_dataclass(section):
            assert isinstance(section, type)
            told = comments(section)
            silent = [
                field.name for field in dataclasses.fields(section) if field.name not in told and not field.name.endswith("_cfg")
            ]
            assert not silent, (section, silent)
