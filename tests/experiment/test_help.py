import dataclasses
import io
import re

import pytest
from rich.console import Console

from tinyexp.examples.digits_demo import DigitsDemo
from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.experiment.entry import run_command
from tinyexp.experiment.help import comments, help_page, sections
from tinyexp.experiment.help_screen import show_help
from tinyexp.experiment.overrides import compose, key_types
from tinyexp.training.recipe import OFFICIAL


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
    assert help_page(VitTpExp, []).splitlines()[-2:] == ["Set on this command line:", "  nothing"]


def test_a_password_in_a_url_is_not_shown():
    _, overrides = compose(VitTpExp, ["redis_cfg.redis_url=redis://me:hunter2@127.0.0.1:6379", "mode=help"])
    page = help_page(VitTpExp, overrides)
    assert "hunter2" not in page
    assert "redis_cfg.redis_url = 'redis://me:***@127.0.0.1:6379'" in page


def test_the_page_tells_what_departs_from_the_recipe():
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


def screen(width: int, only: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show_help(VitTpExp, [], [], only, console)
    assert isinstance(console.file, io.StringIO)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_the_page_fits_its_width_and_begins_with_an_overview(width):
    lines = screen(width)
    assert max(map(len, lines)) <= width
    for key in key_types(VitTpExp):
        assert any(line.startswith(f"  {key} = ") for line in lines), key
    overview = lines[: lines.index("run  the experiment's own keys")]
    for section in sections(VitTpExp):
        assert any(line.startswith(f"  {section.name} ") and f"{len(section.keys)} keys" in line for line in overview)


@pytest.mark.parametrize("section", [section.name for section in sections(VitTpExp)])
def test_one_section_is_one_screen_with_its_keys_alone(section):
    lines = screen(80, section)
    shown = [line.split(" = ")[0].strip() for line in lines if re.match(r"  [a-z]\S+ = ", line)]
    assert shown == [key.path for key in sections(VitTpExp, section)[0].keys]
    assert len(lines) <= 6 + 3 * len(shown)


def test_a_section_that_does_not_exist_ends_in_one_message_with_the_nearest(capsys):
    assert run_command(VitTpExp, ["mode=help", "help_section=optimiser_cfg"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: help_section='optimiser_cfg': allowed are run, ray_cfg, ")
    assert message.endswith("nearest: optimizer_cfg\n")


def test_every_default_of_the_official_recipe_names_its_source():
    told = {key.path: key.meaning for section in sections(VitTpExp) for key in section.keys}
    for key in OFFICIAL.keys() - {"max_train_steps"}:
        assert "DeiT" in told[key], key
