import argparse
import json
import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.equality import GLOBAL_BATCH, batches, build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.accelerators.ema import ShardEma
from tinyexp.errors import CheckpointError
from tinyexp.examples.vit_tp_exp import LAYOUT
from tinyexp.models.vit.build import deit_small_patch16_224
from tinyexp.training.checkpoint import CheckpointCfg, resume
from tinyexp.training.checkpoint_file import read_checkpoint, save_checkpoint
from tinyexp.training.optimizer import OptimizerCfg
from tinyexp.training.schedule import LrSchedulerCfg
from tinyexp.training.snapshot import assemble, take_snapshot
from tinyexp.training.state import TrainState

NAME = "deit_digits_patch8_32"


def started(accelerator: Accelerator) -> TrainState:
    model = build_noisy(NAME)
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=GLOBAL_BATCH)
    schedule = LrSchedulerCfg(warmup_epochs=0).build(optimizer, epochs=10, seed=0)
    return TrainState(accelerator, optimizer, schedule, ShardEma(accelerator.parameters, 0.9))


def take_steps(state: TrainState, first: int, last: int) -> None:
    for images, classes in batches(NAME)[first:last]:
        loss = F.cross_entropy(state.accelerator.training_model(images), classes)
        state.accelerator.step(loss, state.optimizer)
        assert state.ema is not None
        state.ema.update()
        state.step += 1


def official_checkpoint(state: TrainState, args: dict[str, Any]) -> dict[str, Any] | None:
    accelerator = state.accelerator
    snapshot = take_snapshot(state, args=args, facts={})
    return assemble(snapshot, LAYOUT, group=accelerator.open_host_group(), is_main=accelerator.is_main)


def saved_after_one_step(accelerator: Accelerator, path: pathlib.Path) -> TrainState:
    state = started(accelerator)
    take_steps(state, 0, 1)
    checkpoint = official_checkpoint(state, args={"seed": 0, "nested": {"lr": 5e-4}})
    if checkpoint is not None:
        save_checkpoint(checkpoint, path)
    accelerator.barrier()
    return state


def saved_on_mesh(path: pathlib.Path) -> None:
    saved_after_one_step(build_accelerator(activations="replicated"), path)


def resumed_and_continued(settings: dict[str, Any] | None, path: pathlib.Path) -> dict[str, torch.Tensor]:
    state = started(build_accelerator(**settings) if settings is not None else CPUAccelerator())
    resume(state, read_checkpoint(path), LAYOUT, source=str(path))
    assert (state.epoch, state.step) == (0, 1)
    take_steps(state, 1, 3)
    assert state.ema is not None
    averages = state.accelerator.whole_like_weights(state.ema.average)
    return state.accelerator.whole_weights() | {f"ema.{name}": value for name, value in averages.items()}


def test_a_checkpoint_of_two_ranks_equals_that_of_one_process(tmp_path):
    run_on_ranks(saved_on_mesh, 2, tmp_path / "mesh.ckpt")
    saved_after_one_step(CPUAccelerator(), tmp_path / "one.ckpt")
    mesh, one = (torch.load(tmp_path / name, weights_only=True) for name in ("mesh.ckpt", "one.ckpt"))
    assert set(one) == {"model", "optimizer", "lr_scheduler", "epoch", "model_ema", "scaler", "args", "tinyexp"}
    assert mesh.keys() == one.keys()
    for entry in ("model", "model_ema"):
        assert list(mesh[entry]) == list(one[entry])
        for name, value in one[entry].items():
            if not name.endswith("qkv.bias"):  # holds the key bias, whose gradient is rounding noise
                torch.testing.assert_close(mesh[entry][name], value, rtol=0, atol=1e-5)
    assert [len(group["params"]) for group in mesh["optimizer"]["param_groups"]] == [38, 18]
    assert mesh["optimizer"]["state"].keys() == one["optimizer"]["state"].keys()
    for index, slot in one["optimizer"]["state"].items():
        assert slot["step"] == mesh["optimizer"]["state"][index]["step"] == 1
        torch.testing.assert_close(mesh["optimizer"]["state"][index]["exp_avg"], slot["exp_avg"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("settings", [None, {"activations": "replicated"}], ids=["one_process", "tp_2"])
def test_a_run_resumed_on_either_mesh_continues_as_the_uninterrupted_one(settings, tmp_path):
    path = tmp_path / "last.ckpt"
    state = saved_after_one_step(CPUAccelerator(), path)
    take_steps(state, 1, 3)
    assert state.ema is not None
    straight = state.accelerator.whole_weights() | {f"ema.{name}": value for name, value in state.ema.average.items()}
    if settings is None:
        resumed = resumed_and_continued(None, path)
        assert all(torch.equal(resumed[name], value) for name, value in straight.items())
        return
    for resumed in run_on_ranks(resumed_and_continued, 2, settings, path):
        for name, value in straight.items():
            if "attn.k.bias" not in name:
                torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-5)


def test_the_file_loads_strictly_into_plain_timm_with_no_tool_of_ours(tmp_path):
    accelerator = CPUAccelerator()
    torch.manual_seed(0)
    model = deit_small_patch16_224()
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=512)
    state = TrainState(accelerator, optimizer, LrSchedulerCfg().build(optimizer, epochs=300, seed=0))
    checkpoint = official_checkpoint(state, args={})
    assert checkpoint is not None
    save_checkpoint(checkpoint, tmp_path / "last.ckpt")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.eval()(images)[0, :4].tolist()
    code = """
import json, sys, timm, torch
checkpoint = torch.load(sys.argv[1], weights_only=True)
model = timm.create_model("deit_small_patch16_224")
model.load_state_dict(checkpoint["model"], strict=True)
numbers = sum(value.numel() for value in checkpoint["model"].values())
with torch.no_grad():
    logits = model.eval()(torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
print(json.dumps([len(checkpoint["model"]), numbers, [len(g["params"]) for g in checkpoint["optimizer"]["param_groups"]],
                  logits[0, :4].tolist(), "tinyexp" in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "last.ckpt"], capture_output=True, text=True, check=True)
    tensors, numbers, groups, logits, ours_loaded = json.loads(done.stdout)
    assert (tensors, numbers, groups, ours_loaded) == (152, 22_050_664, [102, 50], False)
    assert logits == pytest.approx(expected, abs=1e-5)


def test_the_official_namespace_is_read_and_code_is_not_run(tmp_path, monkeypatch):  # case A19
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(lr=5e-4, output_dir=pathlib.Path("/runs/one"))
    torch.save({"model": {}, "args": args}, tmp_path / "official.pth")
    assert read_checkpoint(tmp_path / "official.pth")["args"] == args

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch PWNED",)

    torch.save({"model": {}, "args": Payload()}, tmp_path / "evil.pth")
    with pytest.raises(CheckpointError, match=r"evil\.pth was refused, it holds more than plain data"):
        read_checkpoint(tmp_path / "evil.pth")
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError, match=r"raw\.pth"):
        read_checkpoint(tmp_path / "raw.pth")
    assert not (tmp_path / "PWNED").exists()


def test_names_of_files_are_plain():
    assert CheckpointCfg().problems() == []
    assert "checkpoint_cfg.last_ckpt_name='a/b'" in CheckpointCfg(last_ckpt_name="a/b").problems()[0]
