import json
import shutil
from pathlib import Path

import pytest

from tests.data_room.configs import toy_cfg
from tests.helpers.disk import full_beyond
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tests.helpers.traced import run_here
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.data.bad_images import ALWAYS_ALLOWED
from tinyexp.errors import DataError
from tinyexp.training.unreadable import BAD_IMAGES, note_unreadable, require_few_unreadable, stop_at_many_unreadable


@pytest.fixture
def spoiled(tmp_path, toy_set) -> Path:
    """The toy set with 12 empty files, each among good ones, in its training split."""
    shutil.copytree(toy_set, tmp_path / "set")
    for index in range(12):
        (tmp_path / "set" / "train" / f"c{index % 4}" / f"{index // 4}x.JPEG").touch()
    return tmp_path / "set"


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def loader_of(root: Path, accelerator, **changes):
    cfg = toy_cfg(root, on_bad_image="skip", repeated_aug=False, train_batch_size_per_device=1, **changes)
    loader = cfg.build_train(accelerator.replica, num_classes=4, seed=0, device_type="cpu")
    loader.start_epoch(0)
    return loader


def noted_on_ranks(root: Path, folder: Path) -> tuple[list[str], str]:
    accelerator = build_accelerator(accelerator="ddp")
    loader = loader_of(root, accelerator, num_workers=0)
    assert not note_unreadable(accelerator, loader, folder)
    stop_at_many_unreadable(accelerator, loader, folder)  # few so far
    list(loader)
    names = note_unreadable(accelerator, loader, folder)
    try:
        stop_at_many_unreadable(accelerator, loader, folder)
    except DataError as error:
        return names, str(error)
    return names, ""


def test_every_rank_hears_of_all_and_the_record_has_each_once_with_its_reason(spoiled, tmp_path):
    record = tmp_path / "run" / BAD_IMAGES
    record.parent.mkdir()
    want = sorted(str(path) for path in spoiled.glob("train/*/*x.JPEG"))
    kept = {"file": want[3], "reason": "of an earlier attempt"}
    record.write_text(f'{json.dumps(kept)}\n{{"file": "unfin')
    message = (
        "12 of 76 images cannot be read, more than the 10 that dataloader_cfg.max_bad_fraction=0.001 allows; "
        f"{record} names them with the reasons; mend or remove them, or allow more"
    )
    assert run_on_ranks(noted_on_ranks, 2, spoiled, tmp_path / "run") == [(want, message)] * 2
    first, *lines = lines_of(record)
    assert first == kept
    assert [line["file"] for line in lines] == want[:3] + want[4:]
    assert all(line["reason"].endswith("the file is empty; replace or remove the file") for line in lines)
    assert all(str(spoiled) not in line["reason"] for line in lines)


def test_a_record_for_which_there_is_no_room_ends_no_run_and_is_written_later(spoiled, tmp_path, caplog):
    folder, accelerator = tmp_path / "run", CPUAccelerator()
    loader = loader_of(spoiled, accelerator, num_workers=0, max_bad_fraction=1.0)
    list(loader)
    folder.mkdir()
    with full_beyond(10):
        assert len(note_unreadable(accelerator, loader, folder)) == 12
    assert "bad_images.jsonl could not be written: File too large" in caplog.text
    assert list(folder.iterdir()) == []
    note_unreadable(accelerator, loader, folder)
    assert len(lines_of(folder / BAD_IMAGES)) == 12


def test_the_share_counts_above_ten_and_workers_tell_their_rank(spoiled, tmp_path):
    accelerator = build_accelerator(accelerator="cpu")
    for fraction, allowed in ((0.0, ALWAYS_ALLOWED), (0.16, 12), (1.0, 76)):
        loader = loader_of(spoiled, accelerator, max_bad_fraction=fraction)
        assert loader.bad_images
        assert loader.bad_images.allowed == allowed
    loader = loader_of(spoiled, accelerator, num_workers=1)
    list(loader)
    with pytest.raises(DataError, match=r"12 of 76 images cannot be read, more than the 10 "):
        require_few_unreadable(accelerator, loader, tmp_path)
    assert len(lines_of(tmp_path / BAD_IMAGES)) == 12


def test_an_image_that_can_be_read_by_now_is_recorded_as_such(spoiled, tmp_path, toy_set):
    accelerator = build_accelerator(accelerator="cpu")
    loader = loader_of(spoiled, accelerator, num_workers=0)
    list(loader)
    for path in spoiled.glob("train/*/*x.JPEG"):
        shutil.copy(toy_set / "train" / "c0" / "0.JPEG", path)
    assert len(note_unreadable(accelerator, loader, tmp_path)) == 12
    assert {line["reason"] for line in lines_of(tmp_path / BAD_IMAGES)} == {
        "it could not be read when it was needed, and can be read now"
    }


def test_a_run_that_skips_too_many_ends_with_status_3_in_mid_epoch_and_one_message(spoiled, tmp_path):
    for index in range(64):
        (spoiled / "train" / f"c{index % 4}" / f"{index // 4}x.JPEG").touch()
    keys = f'dataloader_cfg.data_root="{spoiled}"', "dataloader_cfg.on_bad_image=skip", "dataloader_cfg.repeated_aug=false"
    status = run_here(tmp_path / "out", *keys, "ray_cfg.ray_num_worker=2", "accelerator_cfg.check_every=3", "epochs=1")
    [said] = [path.read_text() for path in (tmp_path / "out").glob("output-*.txt")]
    assert status == 3, said
    record = tmp_path / "out" / "run" / BAD_IMAGES
    assert said.count("more than the 10 that dataloader_cfg.max_bad_fraction=0.001 allows") == 1
    assert said.count(f"{record} names them") == 1
    assert "Traceback" not in said
    assert "Averaged stats" not in said  # of a whole epoch
    assert 10 < len(lines_of(record)) < 48  # of the images of three steps
