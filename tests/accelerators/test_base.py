import pytest
import torch
from torch import nn

from tests.helpers.ranks import build_accelerator, run_on_ranks

SETTINGS = [
    {"activations": "sharded"},
    {"activations": "replicated"},
    {"accelerator": "ddp"},
]


def reduced_ones(settings: dict[str, object]) -> tuple[float, str, int, float]:
    accelerator = build_accelerator(**settings)
    values = torch.ones(1)
    total = accelerator.reduce(values)
    return total.item(), str(total.device), accelerator.replica.size, values.item()


@pytest.mark.parametrize("settings", SETTINGS, ids=["sharded", "replicated", "ddp"])
def test_a_sum_counts_each_replica_once_comes_back_to_its_device_and_leaves_its_input(settings):
    for total, device, replicas, untouched in run_on_ranks(reduced_ones, 2, settings):
        assert total == replicas
        assert device == "cpu"
        assert untouched == 1.0


def weights_after_preparing(settings: dict[str, object]) -> torch.Tensor:
    accelerator = build_accelerator(**settings)
    torch.manual_seed(accelerator.world.rank)
    model = nn.Module()
    model.blocks = nn.ModuleList()
    model.head = nn.Linear(2, 2)
    accelerator.prepare(model) if settings.get("accelerator") == "ddp" else _prepared_without_plan(accelerator, model)
    return model.head.weight.detach().clone()


def _prepared_without_plan(accelerator, model) -> None:
    accelerator.place = lambda model: model
    accelerator.prepare(model)


@pytest.mark.parametrize("settings", SETTINGS, ids=["sharded", "replicated", "ddp"])
def test_every_rank_starts_from_the_weights_of_rank_0(settings):
    first, second = run_on_ranks(weights_after_preparing, 2, settings)
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cpu_tensor_is_reduced_through_the_device_and_comes_back():
    from tinyexp.accelerators.config import AcceleratorCfg
    from tinyexp.models.vit.plan import build_tp_parallelize_plan
    from tinyexp.process import Environment

    accelerator = AcceleratorCfg(accelerator="ddp").build(Environment(), build_tp_parallelize_plan)
    assert accelerator.device.type == "cuda"
    assert accelerator.reduce(torch.ones(1)).device.type == "cpu"


def gathered(settings: dict[str, object]) -> list[list[float]]:
    accelerator = build_accelerator(**settings)
    return accelerator.gather_numbers([accelerator.world.rank + 0.1, 2.0**53 - 1])


def test_numbers_of_all_ranks_arrive_in_their_order_as_they_are():
    for rows in run_on_ranks(gathered, 2, SETTINGS[0]):
        assert rows == [[0.1, 2.0**53 - 1], [1.1, 2.0**53 - 1]]
