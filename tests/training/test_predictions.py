"""What `mode=eval` writes for each image, on any mesh."""

import contextlib
import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from PIL import Image

from tests.data_room.configs import toy_cfg
from tests.data_room.test_decoding import UNREADABLE
from tests.helpers.disk import full_beyond
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import MachineError
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.models.vit.convert import convert_split_qkv_to_fused
from tinyexp.observability.evaluation import ScoredImage
from tinyexp.process import Axis
from tinyexp.training import predictions
from tinyexp.training.predictions import Predictions, write_evaluation

MESHES: dict[str, dict[str, Any]] = {
    "one": {"accelerator": "cpu"},
    "dp": {"accelerator": "ddp"},
    "sharded": {},
    "replicated": {"activations": "replicated"},
    "padded": {"accelerator": "ddp"},
}
TWO = ("dp", "sharded", "replicated")


def evaluated(weights: Path, output: Path, data: dict[str, Any], *meshes: str) -> None:
    """Run `mode=eval` on this rank, on 11 images in batches of 4, once for each mesh in a folder of its own."""
    torch.set_num_threads(1)
    for mesh in meshes:
        experiment = VitTpExp(
            mode="eval",
            launcher="mp",
            exp_name=mesh,
            output_root=str(output),
            accelerator_cfg=AcceleratorCfg(device="cpu", **MESHES[mesh]),
            module_cfg=ModuleCfg("deit_digits_patch8_32", depth=1, img_size=40, num_classes=4, pretrained_from=str(weights)),
            dataloader_cfg=DataLoaderCfg(input_size=40, val_batch_size_per_device=4, num_workers=0, **data),
        )
        experiment.dataloader_cfg.dist_eval = mesh == "padded"
        with contextlib.nullcontext() if mesh == "one" else without_pictures():
            experiment.eval(build_accelerator(**MESHES[mesh]))


@contextlib.contextmanager
def without_pictures() -> Iterator[None]:
    """They take a second each, and are drawn from what the other files hold."""
    with mock.patch.object(predictions, "draw_confusion"), mock.patch.object(predictions, "draw_contact_sheet"):
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Noise enough for a model of some confidence."""
    torch.manual_seed(2)  # of twelve one that is right about some images
    model = ModuleCfg("deit_digits_patch8_32", depth=1, img_size=40, num_classes=4).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    path = tmp_path_factory.mktemp("weights") / "noise.pth"
    torch.save({"model": convert_split_qkv_to_fused(model.state_dict())}, path)
    return path


@pytest.fixture(scope="module")
def folders(weights, toy_set, tmp_path_factory) -> dict[str, Path]:
    """The run folder of an evaluation by one process, and of one on each mesh of two."""
    output = tmp_path_factory.mktemp("evaluations")
    data = {"data_root": str(toy_set)}
    evaluated(weights, output, data, "one")
    run_on_ranks(evaluated, 2, weights, output, data, *TWO, "padded")
    return {name: output / name for name in MESHES}


def rows_of(folder: Path, name: str = "predictions.csv") -> list[dict[str, str]]:
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_image_is_told_once_and_alike_on_every_mesh(folders, toy_set):  # case A16
    one = rows_of(folders["one"])
    assert [row["file"] for row in one] == sorted(
        str(path.relative_to(toy_set / "val")) for path in (toy_set / "val").glob("*/*")
    )
    for name in TWO:
        rows = rows_of(folders[name])
        for key in ("file", "target", "predicted", "target_name", "predicted_name"):
            assert [row[key] for row in rows] == [row[key] for row in one], name
        for key in ("probability", "loss"):
            assert [float(row[key]) for row in rows] == pytest.approx([float(row[key]) for row in one], rel=2e-5), name


def test_what_is_told_of_images_and_classes_adds_up_to_the_score(folders):
    told = json.loads((folders["one"] / "eval.json").read_text())
    rows, classes = rows_of(folders["one"]), rows_of(folders["one"], "per_class.csv")
    right = sum(row["target"] == row["predicted"] for row in rows)
    assert 0 < right < len(rows) == 11
    assert all(row["file"].partition("/")[0] == row["target_name"] for row in rows)
    assert told["test_acc1"] == pytest.approx(100 * right / 11)
    assert told["test_loss"] == pytest.approx(sum(float(row["loss"]) for row in rows) / 11, rel=1e-5)
    assert [(row["name"], row["images"]) for row in classes] == [("c0", "3"), ("c1", "3"), ("c2", "3"), ("c3", "2")]
    assert sum(int(row["correct"]) for row in classes) == right
    assert [each["loss"] for each in told["worst"]] == sorted((each["loss"] for each in told["worst"]), reverse=True)
    assert {each["file"] for each in told["worst"]} == {row["file"] for row in rows}
    for name in ("confusion.png", "worst.png"):
        with Image.open(folders["one"] / name) as picture:
            assert min(picture.size) > 300


def test_the_classes_and_the_worst_images_are_alike_on_every_mesh(folders):
    told = {name: json.loads((folder / "eval.json").read_text()) for name, folder in folders.items()}
    for name in TWO:
        assert (folders[name] / "per_class.csv").read_text() == (folders["one"] / "per_class.csv").read_text()
        assert [each["file"] for each in told[name]["worst"]] == [each["file"] for each in told["one"]["worst"]]
        assert told[name]["run"]["mesh"] == {"dp": 2, "tp": 1} if name == "dp" else {"dp": 1, "tp": 2}


def test_skipped_files_are_absent_and_the_others_keep_their_names(weights, toy_set, case_images, tmp_path, folders):
    shutil.copytree(toy_set / "val", tmp_path / "set" / "val")
    for name in UNREADABLE:
        shutil.copy(case_images / name, tmp_path / "set" / "val" / "c1" / name)
    evaluated(weights, tmp_path, {"data_root": str(tmp_path / "set"), "on_bad_image": "skip"}, "one")
    rows, expected = rows_of(tmp_path / "one"), rows_of(folders["one"])
    assert [(row["file"], row["predicted"]) for row in rows] == [(row["file"], row["predicted"]) for row in expected]


class OneOfTwo:
    """The first rank of two replicas, whose other rank says what it is given."""

    replica = Axis(0, 2)

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def exchange(self, value: object) -> list[object]:
        return [value, self.answers.pop(0)]


def test_what_a_later_pass_or_another_replica_cannot_read_keeps_its_row(toy_set):
    cfg = toy_cfg(toy_set, on_bad_image="skip", val_batch_size_per_device=3)
    loader, answers = cfg.build_val(OneOfTwo.replica, num_classes=4, device_type="cpu"), Predictions()
    bad = loader.bad_images
    assert bad
    bad.flags[4] = 1  # of the images 0, 2, 4, 6, 8, 10 of this replica
    for classes in ([0, 0, 2], [2, 3]):
        answers.add(torch.eye(4)[classes], torch.tensor(classes))
    answers.end(loader)
    bad.flags[6] = 1
    scored = answers.gather(OneOfTwo((1, [0]), []), loader)  # pyright: ignore[reportArgumentType]
    assert [(index, each.target) for index, each in scored.items()] == [(0, 0), (2, 0), (6, 2), (8, 2), (10, 3)]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_picture_that_cannot_be_read_again_does_not_end_the_evaluation(toy_set, tmp_path, policy):
    shutil.copytree(toy_set / "val", tmp_path / "val")
    loader = toy_cfg(tmp_path, on_bad_image=policy).build_val(Axis(), num_classes=4, device_type="cpu")
    images = {index: ScoredImage(f"{index}", 0, 1, 0.9, 3.0 - index) for index in range(2)}
    (tmp_path / "val" / "c0" / "0.JPEG").unlink()
    drawn = {}
    with (
        mock.patch.object(predictions, "draw_confusion"),
        mock.patch.object(predictions, "draw_contact_sheet", lambda tiles, *_, **__: drawn.update(enumerate(tiles))),
    ):
        write_evaluation(tmp_path, {}, images, loader, 4)
    assert [tile.caption[-1] for tile in drawn.values()] == ["cannot be read again", "loss 2.00"]
    assert drawn[0].image.getcolors() == [(40 * 40, (128, 128, 128))]


def test_a_folder_without_room_ends_the_evaluation_with_one_message(toy_set, tmp_path):
    loader = toy_cfg(toy_set).build_val(Axis(), num_classes=4, device_type="cpu")
    with full_beyond(2), pytest.raises(MachineError, match=r"cannot be written to .*File too large; the score is printed above"):
        write_evaluation(tmp_path, {}, {0: ScoredImage("0", 0, 1, 0.9, 3.0)}, loader, 4)
    assert list(tmp_path.iterdir()) == []


def test_images_without_files_and_names_go_by_number(weights, tmp_path):
    evaluated(weights, tmp_path, {"fake_data": True, "fake_data_len": 5}, "one")
    rows = rows_of(tmp_path / "one")
    assert [row["file"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert all(row["target_name"] == row["target"] for row in rows)


def test_an_image_that_the_padded_evaluation_scores_twice_is_told_once(folders):
    assert json.loads((folders["padded"] / "eval.json").read_text())["run"]["changed"]["dataloader_cfg.dist_eval"] == [
        "true",
        "false",
    ]
    rows = rows_of(folders["padded"])
    assert [row["file"] for row in rows] == [row["file"] for row in rows_of(folders["one"])]
