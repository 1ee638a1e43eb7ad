import pytest
import torch

from tinyexp.accelerators.device import take_device
from tinyexp.errors import MachineError
from tinyexp.process import Axis, Environment

SECOND = Environment(Axis(1, 2), Axis(1, 2))


@pytest.fixture
def taken(monkeypatch):
    """The devices that became the current one."""
    found = []
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    return found


def test_every_rank_of_a_node_takes_a_gpu_of_its_own_and_makes_it_the_current_one(monkeypatch, taken):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert take_device(SECOND, asked="auto") == torch.device("cuda", 1)
    assert take_device(Environment(Axis(1, 2), Axis(1, 2), owns_devices=True), asked="cuda") == torch.device("cuda", 0)
    assert taken == [torch.device("cuda", 1), torch.device("cuda", 0)]


def test_without_gpus_or_where_asked_it_is_the_cpu(monkeypatch, taken):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert take_device(SECOND, asked="auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert take_device(SECOND, asked="cpu") == torch.device("cpu")
    assert taken == []


def test_more_ranks_than_gpus_are_refused_with_both_numbers(monkeypatch, taken):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MachineError) as caught:
        take_device(SECOND, asked="cuda")
    assert str(caught.value) == (
        "device=cuda: 2 ranks on this node ask for a CUDA device each, 1 available; "
        "use fewer processes, or ray_cfg.ray_num_gpus_per_worker=0.0 for the CPU"
    )
