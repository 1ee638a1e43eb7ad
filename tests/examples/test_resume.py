"""A run that is stopped and resumed is the uninterrupted run: case A10."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.traced import run_here, trace
from tinyexp.training.checkpoint_file import read_checkpoint

MESHES = {
    "one_process": ["ray_cfg.ray_num_worker=1", "dataloader_cfg.train_batch_size_per_device=16"],
    "tp_2_sharded": [],
    "tp_2_replicated": ["accelerator_cfg.activations=replicated", "dataloader_cfg.train_batch_size_per_device=16"],
    "ddp_2": ["accelerator_cfg.accelerator=ddp"],
}
STOPS = {"at_an_epochs_end": 8, "in_mid_epoch": 6}  # optimizer steps, of 12 in 3 epochs


@pytest.fixture(scope="module")
def run_of(toy_set, tmp_path_factory):
    """The folder of a run on a mesh, up to a step (-1: to its end), each made once."""
    made: dict[tuple[str, int, int], Path] = {}

    def folder(mesh: str, *, stop: int = -1, workers: int = 0) -> Path:
        key = (mesh, stop, workers)
        if key not in made:
            root = tmp_path_factory.mktemp(mesh)
            settings = [*MESHES[mesh], f"dataloader_cfg.num_workers={workers}", f"max_train_steps={stop}"]
            assert run_here(root, f'dataloader_cfg.data_root="{toy_set}"', *settings) == 0
            made[key] = root / "run"
        return made[key]

    return folder


@pytest.fixture
def resumed(toy_set, tmp_path):
    """Continue a copy of a run's folder to the end of the training; returns the copy."""

    def folder(stopped: Path, *settings: str) -> Path:
        shutil.copytree(stopped, tmp_path / "run")
        assert run_here(tmp_path, f'dataloader_cfg.data_root="{toy_set}"', *settings, "resume_from=auto") == 0
        return tmp_path / "run"

    return folder


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = read_checkpoint(folder / "last.ckpt")
    found = {f"{kind}.{name}": value for kind in ("model", "model_ema") for name, value in checkpoint[kind].items()}
    slots = checkpoint["optimizer"]["state"].items()
    return found | {f"optimizer.{index}.{name}": value for index, slot in slots for name, value in slot.items()}


WORKERS = {"no_workers": (0, 0), "two_workers": (2, 2), "other_workers": (0, 2)}  # before and after the stop
OF_GROUPS = [mesh for mesh in MESHES if mesh.startswith("tp")]


@pytest.mark.parametrize(
    ("mesh", "workers"),
    [*((mesh, "no_workers") for mesh in MESHES), *((mesh, workers) for mesh in OF_GROUPS for workers in list(WORKERS)[1:])],
)
@pytest.mark.parametrize("stop", STOPS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run_of, resumed, mesh, stop, workers):
    before, after = WORKERS[workers]
    stopped = run_of(mesh, stop=STOPS[stop], workers=before)
    folder, expected = resumed(stopped, *MESHES[mesh], f"dataloader_cfg.num_workers={after}"), run_of(mesh)
    assert [line["step"] for line in trace(folder)] == list(range(12))
    assert trace(folder) == trace(expected)
    assert rows(folder) == rows(expected)
    ours, theirs = (read_checkpoint(path / "last.ckpt")["tinyexp"] for path in (folder, expected))
    assert (ours["max_accuracy"], ours["step"], ours["epoch"]) == (theirs["max_accuracy"], theirs["step"], theirs["epoch"])
    found, wanted = tensors(folder), tensors(expected)
    assert found.keys() == wanted.keys()
    assert [name for name, value in wanted.items() if not torch.equal(found[name], value)] == []


def test_a_run_that_ended_within_an_epoch_is_evaluated_there_whenever_it_is_resumed(run_of, resumed):
    ended = run_of("one_process", stop=STOPS["in_mid_epoch"])
    again = resumed(ended, *MESHES["one_process"], f"max_train_steps={STOPS['in_mid_epoch']}")
    results = [json.loads((folder / "summary.json").read_text()) for folder in (ended, again)]
    assert [results[1][key] for key in ("top1", "top1_ema", "max_accuracy", "steps")] == [
        results[0][key] for key in ("top1", "top1_ema", "max_accuracy", "steps")
    ]
    assert results[1]["top1"] is not None
    assert rows(again) == rows(ended)
    kept = [read_checkpoint(folder / "best.ckpt")["tinyexp"] for folder in (ended, again)]
    assert kept[0]["max_accuracy"] == kept[1]["max_accuracy"] == results[0]["max_accuracy"]


ELSEWHERE = {
    "tp_1_to_2": ("one_process", "tp_2_replicated"),
    "tp_2_to_1": ("tp_2_replicated", "one_process"),
    "dp_2_to_tp_2": ("ddp_2", "tp_2_sharded"),
    "tp_2_to_dp_2": ("tp_2_sharded", "ddp_2"),
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("change", ELSEWHERE)
def test_a_run_resumed_on_another_mesh_is_the_uninterrupted_one_within_1e_6(run_of, resumed, change, stop):
    before, after = ELSEWHERE[change]
    assert_close_runs(resumed(run_of(before, stop=STOPS[stop]), *MESHES[after]), run_of(before))


def test_a_run_resumed_with_padded_heads_is_the_uninterrupted_one_within_1e_6(run_of, resumed):
    padded = [*MESHES["tp_2_replicated"], "ray_cfg.ray_num_worker=4"]  # 6 heads on 4 ranks
    assert_close_runs(resumed(run_of("one_process", stop=STOPS["in_mid_epoch"]), *padded), run_of("one_process"))


def assert_close_runs(folder: Path, expected: Path) -> None:
    found, wanted = trace(folder), trace(expected)
    assert [line["images"] for line in found] == [line["images"] for line in wanted]
    assert [line["lr"] for line in found] == [line["lr"] for line in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
    for row, other in zip(rows(folder), rows(expected), strict=True):
        assert row == pytest.approx(other, abs=1e-5)  # losses; accuracies are counts of eleven images
    ours, theirs = tensors(folder), tensors(expected)
    for name, value in theirs.items():
        if name.startswith("model") and not name.endswith("qkv.bias"):  # holds the key bias, whose gradient is rounding noise
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)
