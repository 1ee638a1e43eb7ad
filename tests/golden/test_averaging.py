import pytest

from tests.golden.averaging import AverageCase
from tests.golden.jobs import DDP_2, ONE_PROCESS, TP_2_REPLICATED, TP_2_SHARDED

# A tensor-parallel mesh, and whole weights on plain processes with as many replicas.
TWINS = [
    pytest.param(AverageCase(mesh), AverageCase(plain), id=mesh.name)
    for mesh, plain in ((TP_2_REPLICATED, ONE_PROCESS), (TP_2_SHARDED, DDP_2))
]


@pytest.mark.parametrize(("on_shards", "on_wholes"), TWINS)
def test_averages_on_shards_equal_those_of_whole_weights_after_50_steps(on_shards, on_wholes, found_by, worst):
    expected = found_by(on_wholes)[0]
    assert expected.moved > 1e-4  # an average that never moved would pass a bound that the weights themselves do not reach
    for found in found_by(on_shards):
        for decay, average in expected.averages.items():
            assert found.averages[decay].keys() == average.keys()
            for name, value in average.items():
                if decay == "ema0.9" and name.endswith("attn.k.bias"):
                    continue  # its gradient is rounding noise, of which AdamW makes steps that only a slow average hides
                difference = (found.averages[decay][name] - value).abs().max().item()
                worst.check(on_shards.mesh.name, "f32", f"{decay} after 50 steps, absolute", difference, 1e-6)


@pytest.mark.parametrize("on_shards", [AverageCase(mesh) for mesh in (TP_2_REPLICATED, TP_2_SHARDED)], ids=str)
def test_the_average_adds_no_collective_to_a_step(on_shards, found_by):
    for found in found_by(on_shards):
        assert found.collectives
        assert found.collectives == found.collectives_without
