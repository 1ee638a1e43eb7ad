from dataclasses import asdict, fields
from typing import Any

import pytest

from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.training.recipe import OFFICIAL, departures

OFFICIAL_RUN: dict[str, Any] = {"global_batch": 512, "precision": "fp16"}


def test_the_default_experiment_departs_from_nothing():
    assert departures(asdict(VitTpExp()), **OFFICIAL_RUN) == []


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    return 0.123 if value is None else value + 1


@pytest.mark.parametrize("key", OFFICIAL)
def test_one_changed_key_gives_exactly_one_line_that_names_it(key):
    config = asdict(VitTpExp())
    section, _, leaf = key.rpartition(".")
    place = config[section] if section else config
    place[leaf] = other(place[leaf])
    (line,) = departures(config, **OFFICIAL_RUN)
    assert line.startswith(f"{key}=")
    assert "official" in line


def test_batch_precision_and_size_give_one_line_each():
    config = asdict(VitTpExp())
    assert len(departures(config, global_batch=64, precision="fp16")) == 1
    assert departures(config, global_batch=1024, precision="fp16") == []
    assert len(departures(config, global_batch=512, precision="fp32")) == 1
    config["dataloader_cfg"]["input_size"] = config["module_cfg"]["img_size"] = 32
    assert len(departures(config, **OFFICIAL_RUN)) == 1


def test_clipping_off_is_official_however_it_is_written():
    config = asdict(VitTpExp())
    config["optimizer_cfg"]["clip_grad"] = 0
    assert departures(config, **OFFICIAL_RUN) == []


def test_every_key_of_the_official_table_exists():
    sections = {field.name for field in fields(VitTpExp)}
    assert {key.partition(".")[0] for key in OFFICIAL} <= sections
