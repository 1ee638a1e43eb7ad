import pytest
import torch

from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.errors import ConfigError, MachineError
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.parallel.mesh import MeshShape
from tinyexp.process import Axis, Environment


def test_every_unknown_choice_is_named_with_the_nearest():
    problems = "\n".join(
        AcceleratorCfg(accelerator="dpp", activations="shared", precision="fp8", device="gpu", tp_size=-1).problems()
    )
    for part in (
        "accelerator_cfg.accelerator='dpp': allowed are tp, ddp, cpu; nearest: ddp",
        "accelerator_cfg.activations='shared'",
        "nearest: sharded",
        "accelerator_cfg.precision='fp8'",
        "accelerator_cfg.device='gpu'",
        "accelerator_cfg.tp_size=-1",
    ):
        assert part in problems


def test_the_mesh_follows_from_accelerator_processes_and_tp_size():
    assert AcceleratorCfg().mesh_shape(4) == MeshShape(dp=1, tp=4)
    assert AcceleratorCfg(tp_size=2).mesh_shape(4) == MeshShape(dp=2, tp=2)
    assert AcceleratorCfg(accelerator="ddp").mesh_shape(4) == MeshShape(dp=4, tp=1)
    assert AcceleratorCfg(accelerator="cpu").mesh_shape(1) == MeshShape(dp=1, tp=1)
    with pytest.raises(ConfigError, match="accelerator=cpu runs one process, this run has 2"):
        AcceleratorCfg(accelerator="cpu").mesh_shape(2)
    with pytest.raises(ConfigError, match=r"tp_size=2 needs accelerator_cfg\.accelerator=tp, got ddp"):
        AcceleratorCfg(accelerator="ddp", tp_size=2).mesh_shape(2)


@pytest.mark.parametrize("name", ["tp", "ddp", "cpu"])
def test_one_process_runs_under_every_accelerator(name):
    accelerator = AcceleratorCfg(accelerator=name, device="cpu").build(Environment(), build_tp_parallelize_plan)
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model)
    accelerator.step(model(torch.ones(1, 2)).sum(), torch.optim.SGD(model.parameters(), lr=1.0))
    assert accelerator.is_main
    assert torch.equal(accelerator.reduce(torch.ones(2)), torch.ones(2))
    assert isinstance(accelerator, CPUAccelerator) == (name == "cpu")
    accelerator.close()


def test_a_tensor_parallel_group_over_two_nodes_is_refused_before_the_ranks_meet():
    environment = Environment(Axis(1, 4), Axis(1, 2), "10.0.0.1", 4000)
    with pytest.raises(MachineError) as caught:
        AcceleratorCfg(device="cpu").build(environment, build_tp_parallelize_plan)
    for part in ("tp_size=0: the 4 ranks", "has 2 of the 4 ranks", "tp_size=1, 2", "accelerator_cfg.tp_across_nodes=true"):
        assert part in str(caught.value)


def test_only_tensor_parallel_ranks_must_share_a_node():
    assert AcceleratorCfg().ranks_on_one_node() == 0  # all of them
    assert AcceleratorCfg(tp_size=2).ranks_on_one_node() == 2
    assert AcceleratorCfg(tp_size=2, tp_across_nodes=True).ranks_on_one_node() == 1
    assert AcceleratorCfg(accelerator="ddp").ranks_on_one_node() == 1
