"""Case A09: the file of a tensor-parallel run of DeiT-S as published, read by timm alone."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.examples.vit_tp_exp import LAYOUT, VitTpExp
from tinyexp.training.checkpoint import CheckpointCfg
from tinyexp.training.checkpoint_file import read_checkpoint
from tinyexp.training.checkpoint_keeper import CheckpointKeeper
from tinyexp.training.epoch import train_step

READ_BY_TIMM = """
import json, sys, timm, torch
checkpoint = torch.load(sys.argv[1], weights_only=True)
model = timm.create_model("deit_small_patch16_224")
model.load_state_dict(checkpoint["model"], strict=True)
torch.set_num_threads(1)
with torch.no_grad():
    logits = model.eval()(torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(7)))
numbers = sum(value.numel() for value in checkpoint["model"].values())
groups = [len(group["params"]) for group in checkpoint["optimizer"]["param_groups"]]
print(json.dumps([sorted(checkpoint), len(checkpoint["model"]), numbers, groups, logits[0].tolist(), "tinyexp" in sys.modules]))
"""


def one_step_and_save(accelerator: Accelerator, folder: Path) -> tuple[list[float], float, int]:
    """The logits of an image after one step, the seconds that the save took, and the bytes that this rank would send for it."""
    torch.set_num_threads(1)
    experiment = VitTpExp(output_root=str(folder), dataloader_cfg=DataLoaderCfg(train_batch_size_per_device=2))
    state = experiment.build_state(accelerator)
    generator = torch.Generator().manual_seed(3)
    images, classes = torch.randn(2, 3, 224, 224, generator=generator), torch.tensor([3, 977])
    accelerator.training_model.train()
    train_step(state, images, classes, criterion=torch.nn.CrossEntropyLoss())
    start = time.monotonic()
    with CheckpointKeeper(folder, CheckpointCfg(), LAYOUT, accelerator) as keeper:
        keeper.save(state, args={"seed": 0}, facts={"global_batch": 2})
        snapshot_bytes = keeper.sent_bytes
    accelerator.barrier()
    seconds = time.monotonic() - start
    with torch.no_grad():
        image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(7))
        return accelerator.model.eval()(image)[0].tolist(), seconds, snapshot_bytes


def on_two_ranks(folder: Path) -> tuple[list[float], float, int]:
    return one_step_and_save(build_accelerator(activations="replicated"), folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folders and findings of the same step at tp=2 and in one process."""
    mesh, alone = tmp_path_factory.mktemp("tp_2"), tmp_path_factory.mktemp("one")
    return mesh, run_on_ranks(on_two_ranks, 2, mesh), alone, one_step_and_save(CPUAccelerator(), alone)


def test_timm_alone_loads_the_file_of_two_ranks_and_computes_their_logits(saved):
    folder, ranks, _, _ = saved
    done = subprocess.run([sys.executable, "-c", READ_BY_TIMM, folder / "last.ckpt"], capture_output=True, text=True, check=True)
    entries, tensors, numbers, groups, logits, ours_loaded = json.loads(done.stdout)
    assert entries == ["args", "epoch", "lr_scheduler", "model", "model_ema", "optimizer", "scaler", "tinyexp"]
    assert (tensors, numbers, groups, ours_loaded) == (152, 22_050_664, [102, 50], False)
    for own, seconds, _ in ranks:
        assert logits == pytest.approx(own, abs=1e-5)
        assert seconds < 60


def test_two_ranks_save_what_one_process_saves(saved):
    folder, _, alone, _ = saved
    mesh, one = read_checkpoint(folder / "last.ckpt"), read_checkpoint(alone / "last.ckpt")
    assert list(mesh["model"]) == list(one["model"])
    for kind in ("model", "model_ema"):
        for name, value in one[kind].items():
            torch.testing.assert_close(mesh[kind][name], value, rtol=0, atol=1e-5)
    for index, slot in one["optimizer"]["state"].items():
        assert mesh["optimizer"]["state"][index]["exp_avg"].shape == slot["exp_avg"].shape
        torch.testing.assert_close(mesh["optimizer"]["state"][index]["exp_avg"], slot["exp_avg"], rtol=1e-3, atol=1e-6)


def test_only_the_shards_of_the_other_ranks_travel(saved):
    folder, ranks, _, (_, _, sent_by_one) = saved
    sharded = sum(
        value.numel() * value.element_size()
        for name, value in read_checkpoint(folder / "last.ckpt")["model"].items()
        if "attn.qkv" in name or "attn.proj.weight" in name or "mlp.fc1" in name or "mlp.fc2.weight" in name
    )
    assert sent_by_one == 0
    assert ranks[0][2] == 0
    assert ranks[1][2] == 4 * sharded // 2 == 170_127_360  # weights, average and two moments, one half of each
