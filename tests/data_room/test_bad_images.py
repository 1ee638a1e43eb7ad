import logging
import shutil
from pathlib import Path

import pytest
import torch

from tests.data_room.configs import toy_cfg
from tests.data_room.test_decoding import UNREADABLE
from tests.helpers.equality import build_noisy
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.data import bad_images
from tinyexp.data.bad_images import LONGEST_ROW
from tinyexp.data.batches import PaddedBatches
from tinyexp.errors import DataError
from tinyexp.process import Axis
from tinyexp.training.epoch import evaluate


@pytest.fixture
def spoiled(tmp_path, toy_set, case_images) -> Path:
    """The toy set with the five unreadable files of the cases in train/c1 and val/c1 (A02)."""
    for split in ("train", "val"):
        shutil.copytree(toy_set / split, tmp_path / split)
        for name in UNREADABLE:
            shutil.copy(case_images / name, tmp_path / split / "c1" / name)
    return tmp_path


def bad_files(root: Path, split: str) -> list[str]:
    return sorted(str(root / split / "c1" / name) for name in UNREADABLE)


def epoch(root: Path, replica: Axis, **changes):
    cfg = toy_cfg(root, on_bad_image="skip", repeated_aug=False, train_batch_size_per_device=1, **changes)
    loader = cfg.build_train(replica, num_classes=4, seed=0, device_type="cpu")
    loader.start_epoch(0)
    batches = list(loader)
    assert loader.bad_images
    return torch.cat([images for images, _ in batches]), torch.cat([classes for _, classes in batches]), loader.bad_images


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_by_default_the_first_unreadable_file_stops_the_run_with_its_path(spoiled, split, num_workers):  # A02
    cfg = toy_cfg(spoiled, num_workers=num_workers, repeated_aug=False)
    loader = (
        cfg.build_train(Axis(), num_classes=4, seed=0, device_type="cpu")
        if split == "train"
        else cfg.build_val(Axis(), num_classes=4, device_type="cpu")
    )
    with pytest.raises(DataError) as stop:
        list(loader)
    assert str(stop.value).partition(": ")[0] in bad_files(spoiled, split)
    assert "Traceback" not in str(stop.value)


def test_in_training_the_next_readable_file_stands_in_on_every_mesh_and_with_any_workers(spoiled):  # A02
    images, classes, bad = epoch(spoiled, Axis())
    assert sorted(bad.names()) == bad_files(spoiled, "train")
    assert len(classes) == 69
    assert classes.bincount().tolist() == [16, 16, 16 + 5, 16]  # by name the bad files are the last of c1
    for num_workers in (1, 2):
        others, _, also_bad = epoch(spoiled, Axis(), num_workers=num_workers)
        assert torch.equal(images, others)
        assert torch.equal(bad.flags, also_bad.flags)
    halves = [epoch(spoiled, Axis(rank, 2)) for rank in range(2)]
    assert torch.equal(torch.stack([half[0] for half in halves], dim=1).flatten(0, 1)[: len(images)], images)
    assert torch.equal((halves[0][2].flags + halves[1][2].flags).clamp(max=1), bad.flags)


def test_each_file_is_said_once_however_often_it_is_met(spoiled, caplog):
    cfg = toy_cfg(spoiled, on_bad_image="skip", repeated_aug=False, train_batch_size_per_device=1)
    loader = cfg.build_train(Axis(), num_classes=4, seed=0, device_type="cpu")
    with caplog.at_level(logging.WARNING, logger="tinyexp"):
        for number in range(3):
            loader.start_epoch(number)
            list(loader)
    said = [record.getMessage() for record in caplog.records]
    assert sorted(message.partition(": ")[0] for message in said) == bad_files(spoiled, "train")
    assert all("(dataloader_cfg.on_bad_image=skip)" in message for message in said)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("dist_eval", [False, True])
def test_an_evaluation_leaves_unreadable_files_out_in_equal_steps(spoiled, size, dist_eval):  # A02
    cfg = toy_cfg(spoiled, on_bad_image="skip", val_batch_size_per_device=2, dist_eval=dist_eval)
    steps, classes, names, flags = [], [], [], torch.zeros(16, dtype=torch.uint8)
    for rank in range(size):
        loader = cfg.build_val(Axis(rank, size), num_classes=4, device_type="cpu")
        batches = list(PaddedBatches(loader))
        steps.append([len(images) for images, _ in batches])
        classes += torch.cat([valid for _, valid in batches]).tolist()
        assert loader.bad_images
        flags |= loader.bad_images.flags
        names = loader.bad_images.names(flags)
    assert sorted(classes) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert all(step == steps[0] for step in steps)
    assert sorted(names) == bad_files(spoiled, "val")


def test_reasons_are_told_of_a_shard_that_was_changed_and_within_a_time(toy_set, packed, tmp_path, monkeypatch):
    shutil.copytree(packed / "val", tmp_path / "val")
    loader = toy_cfg(tmp_path, data_format="shards", on_bad_image="skip").build_val(Axis(), num_classes=4, device_type="cpu")
    bad = loader.bad_images
    assert bad
    bad.flags[[0, 10]] = 1
    (tmp_path / "val" / "val-000000.tar").write_bytes(b"another shard")
    first, last = bad.reasons().values()
    assert "the shard was changed while the run reads it" in first
    assert last == "it could not be read when it was needed, and can be read now"
    bad.flags[9] = 1
    monkeypatch.setattr(bad_images, "LONGEST_REREADING", 0)
    assert list(bad.reasons().values()) == [first, last, "it could not be read, and was not read again for want of time"]


def test_many_unreadable_files_in_a_row_stop_the_run(tmp_path):
    folder = tmp_path / "train" / "c0"
    folder.mkdir(parents=True)
    for index in range(LONGEST_ROW + 2):
        (folder / f"{index:02}.JPEG").touch()
    with pytest.raises(
        DataError, match=r"10 files in a row cannot be read; is the disk there\? The last one: .*the file is empty"
    ):
        epoch(tmp_path, Axis())


def test_an_image_that_the_transform_refuses_is_no_unreadable_file(toy_set):
    cfg = toy_cfg(toy_set, input_size=32, on_bad_image="skip")
    with pytest.raises(DataError, match=r"is 72x72 pixels, but dataloader_cfg\.input_size=32"):
        list(cfg.build_val(Axis(), num_classes=4, device_type="cpu"))


def test_other_policies_and_limits_are_refused(toy_set):
    [limit, policy] = toy_cfg(toy_set, on_bad_image="ignore", max_pixels=10**9).problems(mixup_active=False, num_classes=4)
    assert policy == "dataloader_cfg.on_bad_image=ignore is unknown; use one of stop, skip"
    assert limit.startswith("dataloader_cfg.max_pixels=1000000000: a number from 1 to 178,956,970 is needed")


def test_a_validation_set_of_which_nothing_can_be_read_says_so(tmp_path):
    for index in range(3):
        (tmp_path / "val" / "c0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / "c0" / f"{index}.JPEG").touch()
    loader = toy_cfg(tmp_path, on_bad_image="skip", input_size=32).build_val(Axis(), num_classes=1, device_type="cpu")
    [(images, classes)] = PaddedBatches(loader)
    assert (tuple(images.shape), len(classes)) == ((3, 3, 32, 32), 0)
    accelerator = CPUAccelerator()
    accelerator.prepare(build_noisy("deit_digits_patch8_32"))
    with pytest.raises(DataError, match="none of the images of the validation set can be read"):
        evaluate(accelerator, [(images, classes)])
