import torch
import torch.nn.functional as F

from tests.helpers.equality import GLOBAL_BATCH, batches, build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.accelerators.ema import EmaCfg, ShardEma
from tinyexp.parallel.report import TrafficCounter
from tinyexp.training.optimizer import OptimizerCfg

NAME = "deit_digits_patch8_32"
STEPS = 50


def average_after_steps(accelerator: Accelerator) -> dict[str, torch.Tensor]:
    model = build_noisy(NAME)
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=GLOBAL_BATCH)
    ema = ShardEma(accelerator.parameters, 0.9)
    replica = accelerator.replica
    share = GLOBAL_BATCH // replica.size
    mine = slice(replica.rank * share, (replica.rank + 1) * share)
    data = batches(NAME)
    for step in range(STEPS):
        images, classes = data[step % len(data)]
        accelerator.step(F.cross_entropy(accelerator.training_model(images[mine]), classes[mine]), optimizer)
        with TrafficCounter() as counter:
            ema.update()
        assert counter.calls == 0
    return accelerator.whole_like_weights(ema.average)


def average_on_mesh(activations: str) -> dict[str, torch.Tensor]:
    return average_after_steps(build_accelerator(activations=activations))


def test_the_average_on_two_ranks_is_that_of_one_process_and_needs_no_collective():
    expected = average_after_steps(CPUAccelerator())
    for activations in ("sharded", "replicated"):
        average = run_on_ranks(average_on_mesh, 2, activations)[0]
        for name, value in expected.items():
            if not name.endswith("k.bias"):
                assert (average[name] - value).abs().mean() < 1e-6, name


def test_an_update_follows_the_official_rule():
    accelerator = CPUAccelerator()
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model)
    ema = ShardEma(accelerator.parameters, 0.75)
    start = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    ema.update()
    torch.testing.assert_close(ema.average["weight"], 0.75 * start + 0.25 * (start + 1.0))


def test_the_average_takes_the_place_of_the_weights_for_a_block_only():
    accelerator = CPUAccelerator()
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model)
    ema = ShardEma(accelerator.parameters, 0.5)
    averaged = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.mul_(3.0)
    live = model.weight.detach().clone()
    with ema.in_place_of_weights():
        assert torch.equal(model.weight, averaged)
    assert torch.equal(model.weight, live)
    assert torch.equal(ema.average["weight"], averaged)


def test_the_average_can_be_switched_off_and_its_decay_is_checked():
    accelerator = CPUAccelerator()
    accelerator.prepare(torch.nn.Linear(2, 2))
    assert EmaCfg(model_ema=False).build(accelerator.parameters) is None
    assert EmaCfg().problems() == []
    assert "ema_cfg.model_ema_decay=1.5" in EmaCfg(model_ema_decay=1.5).problems()[0]
