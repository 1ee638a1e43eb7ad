"""Runs whose data set is not the one that they, or another of their ranks, take it for."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.helpers.ranks import run_on_ranks
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import DataError
from tinyexp.examples import vit_evaluation, vit_tp_exp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.observability.tensorboard_log import TensorboardCfg
from tinyexp.process import Environment


def experiment(root: Path, output: Path, **changes: Any) -> VitTpExp:
    """One epoch of eight steps of a one-block model, in the process that calls `run`."""
    values: dict[str, Any] = {
        "launcher": "mp",
        "epochs": 1,
        "accelerator_cfg": AcceleratorCfg(accelerator="cpu", device="cpu"),
        "ray_cfg": RayCfg(ray_num_gpus_per_worker=0.0),
        "module_cfg": ModuleCfg("deit_digits_patch8_32", depth=1, img_size=40, num_classes=4),
        "tensorboard_cfg": TensorboardCfg(enable_tensorboard=False),
    }
    data_cfg = DataLoaderCfg(str(root), input_size=40, num_workers=0, train_batch_size_per_device=8, val_batch_size_per_device=8)
    return VitTpExp(output_root=str(output), dataloader_cfg=data_cfg, **(values | changes))


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Without the picture of the curves, which takes as long as the rest, and with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with (
        mock.patch.object(vit_tp_exp, "draw_curves", lambda rows, path, **_: path),
        mock.patch.object(vit_evaluation, "write_evaluation"),
    ):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(toy_set, tmp_path_factory) -> Path:
    """The checkpoint of a run on the toy set."""
    run = experiment(toy_set, tmp_path_factory.mktemp("trained"))
    run.run()
    return run.run_folder / "last.ckpt"


@pytest.fixture
def own_set(toy_set, tmp_path) -> Path:
    """A copy of the toy set, for a test to change."""
    return shutil.copytree(toy_set, tmp_path / "set")


@pytest.mark.parametrize("key", ["pretrained_from", "resume_from"])
def test_an_evaluation_on_other_classes_is_refused_and_names_the_first_that_differs(own_set, tmp_path, trained, key):
    (own_set / "val" / "c0").rename(own_set / "val" / "c9")
    run = experiment(own_set, tmp_path, mode="eval")
    setattr(run.module_cfg if key == "pretrained_from" else run, key, str(trained))
    with pytest.raises(DataError) as stop:
        run.run()
    assert str(stop.value).startswith(f"checkpoint {trained} was trained on 4 classes (c0, c1, c2, …)")
    assert "has 4 (c1, c2, c3, …): they differ from class 0 on" in str(stop.value)


def test_weights_without_class_names_are_evaluated_on_any_set(own_set, tmp_path, trained):
    bare = torch.load(trained, weights_only=True)
    del bare["tinyexp"]
    torch.save(bare, tmp_path / "official.pth")
    (own_set / "val" / "c0").rename(own_set / "val" / "c9")
    run = experiment(own_set, tmp_path, mode="eval")
    run.module_cfg.pretrained_from = str(tmp_path / "official.pth")
    assert 0 <= run.run()["test_acc1"] <= 100


def refused_on_this_rank(whole: Path, incomplete: Path, output: Path) -> list[str]:
    """What a training and an evaluation say, of which the second rank reads the incomplete set."""
    root = incomplete if Environment.read().world.rank else whole
    said = []
    for mode in ("train", "eval"):
        run = experiment(root, output, mode=mode, accelerator_cfg=AcceleratorCfg(accelerator="ddp", device="cpu", timeout_s=60))
        with pytest.raises(DataError) as stop:
            run.run()
        said.append(str(stop.value))
    return said


def test_a_file_that_one_rank_lacks_is_named_on_every_rank_before_the_first_step(toy_set, own_set, tmp_path):
    (own_set / "val" / "c1" / "2.JPEG").unlink()
    for said in run_on_ranks(partial(refused_on_this_rank, toy_set, own_set), 2, tmp_path):
        for message in said:
            assert message.startswith(
                "the ranks do not see the same val images: 11 images on rank 0; 10 images on rank 1. They differ from number 5 "
                "on: c1/2.JPEG of class c1 on rank 0, c2/0.JPEG of class c2 on rank 1; copy the set again"
            )
    assert not list(tmp_path.glob("**/*.ckpt"))


def resumed(root: Path, trained: Path, output: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of a run that goes on from the checkpoint."""
    experiment(root, output, resume_from=str(trained)).run()
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_resumed_run_warns_of_files_in_another_class_and_of_another_number_of_them(own_set, trained, tmp_path, caplog):
    (own_set / "train" / "c0" / "3.JPEG").rename(own_set / "train" / "c1" / "x.JPEG")
    (own_set / "val" / "c3" / "0.JPEG").unlink()
    moved, fewer = resumed(own_set, trained, tmp_path, caplog)
    assert moved.startswith(f"{trained}: the train images are as many as then, but not of the same classes: the run goes on")
    assert fewer.startswith(f"{trained}: the val images are 10 now, 11 then: accuracies are of other images")


def test_a_resumed_run_has_no_warning_for_the_same_files_and_a_note_for_other_names(
    toy_set, own_set, trained, tmp_path, caplog, capsys
):
    assert resumed(toy_set, trained, tmp_path / "same", caplog) == []
    assert " than then" not in capsys.readouterr().out
    (own_set / "train" / "c3" / "9.JPEG").rename(own_set / "train" / "c3" / "99.JPEG")
    assert resumed(own_set, trained, tmp_path / "renamed", caplog) == []
    assert "the train images have other names than then, in the same classes" in capsys.readouterr().out
