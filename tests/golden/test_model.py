"""The models beside the official ones: names, shapes, counts, rates, and how they start."""

import pytest
import torch
from timm.layers import DropPath

from tests.golden.experiment import RecordedModuleCfg
from tests.golden.record import checksum, load, sha256
from tests.golden.recorder import next_draws
from tinyexp.examples.vit_tp_exp import LAYOUT
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.parallel.apply import Parameters
from tinyexp.process import preserve_random_state, seed_everything

MODELS = load("model")["models"]


def cfg_of(name: str, drop_path_rate: float = 0.1) -> ModuleCfg:
    if name.startswith("golden"):
        return RecordedModuleCfg(recorded=name, drop_path_rate=drop_path_rate).untouched()
    return ModuleCfg(model_name=name, drop_path_rate=drop_path_rate)


@pytest.mark.parametrize("name", MODELS)
def test_the_official_state_has_our_names_and_shapes_in_our_order(name):
    with torch.device("meta"):
        model = cfg_of(name).build()
    official = LAYOUT.to_official(model.state_dict())
    assert [[key, list(value.shape)] for key, value in official.items()] == MODELS[name]["state_dict"]
    assert list(LAYOUT.to_official(dict(model.named_parameters()))) == MODELS[name]["parameter_order"]
    assert Parameters(model).num_whole() == MODELS[name]["n_parameters"]
    assert len(list(model.buffers())) == MODELS[name]["n_buffers"]


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("golden")])
def test_drop_path_rises_to_its_rate_as_in_the_official_model(name):
    with torch.device("meta"):
        model = cfg_of(name).build()
    first, *others = MODELS[name]["drop_path_rates_at_0.1"]
    assert first == 0.0
    assert [layer.drop_prob for layer in model.modules() if isinstance(layer, DropPath)] == [
        rate for rate in others for _ in range(2)
    ]


@pytest.mark.parametrize("name", ["deit_small_patch16_224", "golden_small"])
def test_a_run_starts_from_the_official_weights_and_random_state(name):
    """Constants bit for bit; drawn weights to rounding, because another CPU's vector unit rounds their last bit differently."""
    recorded = load("init")["timm_1.0.31"][name]
    with preserve_random_state():
        seed_everything(0)
        weights = LAYOUT.to_official(cfg_of(name).build().state_dict())
        assert next_draws() == recorded["rng_after_construction"]
    assert weights.keys() == recorded["params"].keys()
    for key, expected in recorded["params"].items():
        assert checksum(weights[key])["l2"] == pytest.approx(expected["l2"], rel=1e-7), key
        assert weights[key].flatten()[:4].tolist() == pytest.approx(expected["first4"], rel=1e-5, abs=1e-12), key
        if expected["std"] == 0:
            assert sha256(weights[key]) == expected["sha256_f32"], key
