import logging
import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.data_room.configs import fake_cfg, toy_cfg
from tinyexp.data import loaders
from tinyexp.data.batches import ImageLoader, PaddedBatches, TrainLoader
from tinyexp.data.images import Images
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.samplers import ExactSampler, RepeatedAugSampler, SampleKey
from tinyexp.data.seeded import SeededImages
from tinyexp.errors import ConfigError, DataError
from tinyexp.process import Axis, seed_everything


def train_loader(cfg: DataLoaderCfg, replica: Axis = Axis(), num_classes: int = 4) -> TrainLoader:  # noqa: B008  frozen
    return cfg.build_train(replica, num_classes=num_classes, seed=0, device_type="cpu")


def val_loader(cfg: DataLoaderCfg, replica: Axis = Axis(), num_classes: int = 4) -> ImageLoader:  # noqa: B008  frozen
    return cfg.build_val(replica, num_classes=num_classes, device_type="cpu")


def file_names(loader: DataLoader) -> list[list[str]]:
    """The files of each batch, in reading order."""
    images = loader.dataset.images if isinstance(loader.dataset, SeededImages) else loader.dataset
    assert isinstance(images, Images)
    assert loader.batch_sampler
    indices = [[key.index if isinstance(key, SampleKey) else key for key in batch] for batch in loader.batch_sampler]
    return [[images.files.name(index) for index in batch] for batch in indices]


def test_the_home_folder_is_expanded(tmp_path, monkeypatch, toy_set):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set").symlink_to(toy_set)
    cfg = toy_cfg(Path("~/set"))
    assert cfg.problems(mixup_active=True, num_classes=4) == []
    assert sum(len(batch) for batch in file_names(val_loader(cfg))) == 11


# --- training


def test_a_set_below_256_images_still_has_its_steps_with_repeated_augmentation(toy_set):  # A03 (a)
    loader = train_loader(toy_cfg(toy_set))
    assert isinstance(loader.order.indices, RepeatedAugSampler)
    assert len(loader) == len(file_names(loader)) == 8


@pytest.mark.parametrize("repeated_aug", [True, False])
def test_a_batch_larger_than_the_set_is_refused_with_all_the_numbers(toy_set, repeated_aug):  # A03 (b)
    cfg = toy_cfg(toy_set, train_batch_size_per_device=128, repeated_aug=repeated_aug)
    with pytest.raises(ConfigError) as refusal:
        train_loader(cfg, Axis(0, 2))
    for part in ("64 images over 2 replicas", "32 samples", "dataloader_cfg.train_batch_size_per_device=128", "to 32 or less"):
        assert part in str(refusal.value)


def test_more_replicas_than_images_are_refused():
    with pytest.raises(ValueError, match=r"3 images over 4 replicas give each replica 0 samples.*fake_data_len"):
        train_loader(fake_cfg(fake_data_len=3, train_batch_size_per_device=1), Axis(0, 4))


def test_one_replica_reads_each_image_once_in_8_steps(toy_set):  # A08
    batches = file_names(train_loader(toy_cfg(toy_set, repeated_aug=False)))
    assert len(batches) == 8
    assert len({name for batch in batches for name in batch}) == 64


def test_two_replicas_read_disjoint_halves_in_4_steps(toy_set):  # A08
    cfg = toy_cfg(toy_set, repeated_aug=False)
    first, second = (file_names(train_loader(cfg, Axis(rank, 2))) for rank in range(2))
    assert len(first) == len(second) == 4
    names = [{name for batch in batches for name in batch} for batches in (first, second)]
    assert len(names[0]) == len(names[1]) == 32
    assert not names[0] & names[1]


def test_without_repeats_the_order_is_the_official_one_of_the_epoch(toy_set):
    loader = train_loader(toy_cfg(toy_set, repeated_aug=False), Axis(1, 2))
    official = DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=True, seed=0)
    for epoch in (0, 3):
        loader.start_epoch(epoch)
        official.set_epoch(epoch)
        assert [key.index for key in loader.sampler] == list(official)


def test_a_training_batch_is_float_images_and_integer_classes(toy_set):
    images, targets = next(iter(train_loader(toy_cfg(toy_set))))
    assert (images.shape, images.dtype) == ((8, 3, 40, 40), torch.float32)
    assert (targets.shape, targets.dtype) == ((8,), torch.int64)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_draws_one_number_of_the_process_besides_its_augmentation(num_workers):
    loader = fake_cfg(num_workers=num_workers).build_val(Axis(), num_classes=10, device_type="cpu")
    torch.manual_seed(0)
    for _epoch in range(2):
        list(loader)
    got = torch.rand(())
    torch.manual_seed(0)
    torch.empty(2, dtype=torch.int64).random_()
    assert torch.equal(got, torch.rand(()))


def images_of(loader: TrainLoader, epoch: int, first_batch: int = 0) -> list[torch.Tensor]:
    loader.start_epoch(epoch, first_batch=first_batch)
    return [images for images, _ in loader]


def test_images_are_augmented_alike_by_any_number_of_workers_and_from_any_batch_on():
    seed_everything(1)
    straight = images_of(train_loader(fake_cfg(num_workers=0, fake_data_len=32), num_classes=10), 1)
    for num_workers, first in ((0, 2), (1, 0), (2, 1)):
        loader = train_loader(fake_cfg(num_workers=num_workers, fake_data_len=32), num_classes=10)
        seed_everything(2 + num_workers)
        assert loader.batches_in_epoch == len(straight)
        rest = images_of(loader, 1, first)
        assert len(rest) == len(straight) - first
        assert all(torch.equal(one, other) for one, other in zip(rest, straight[first:], strict=True))


def test_every_sample_of_every_epoch_is_augmented_anew():
    loader = train_loader(fake_cfg(num_workers=0, fake_data_len=32), num_classes=10)  # three samples of each image
    samples = [image for epoch in (0, 1) for images in images_of(loader, epoch) for image in images]
    assert len({image.numpy().tobytes() for image in samples}) == len(samples)


def test_replicas_share_one_order_of_augmented_images():
    cfg = fake_cfg(num_workers=0, fake_data_len=32, train_batch_size_per_device=4)
    alone = torch.cat(images_of(train_loader(cfg, num_classes=10), 0))
    halves = [torch.cat(images_of(train_loader(cfg, Axis(rank, 2), num_classes=10), 0)) for rank in range(2)]
    assert torch.equal(torch.stack(halves, dim=1).flatten(0, 1), alone)


def test_loading_in_the_training_process_leaves_its_random_state_as_it_was():
    loader = train_loader(fake_cfg(num_workers=0, fake_data_len=32), num_classes=10)
    seed_everything(0)
    list(loader)
    got = torch.rand(()), np.random.rand(), random.random()
    seed_everything(0)
    torch.empty((), dtype=torch.int64).random_()  # that of an epoch
    assert got == (torch.rand(()), np.random.rand(), random.random())


def test_more_workers_than_cores_are_lowered_with_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(loaders, "available_cores", lambda: 1)
    with caplog.at_level(logging.WARNING, logger="tinyexp"):
        built = [train_loader(fake_cfg(num_workers=10)), val_loader(fake_cfg(num_workers=10))]
        train_loader(fake_cfg(num_workers=11), Axis(1, 2))  # another replica says nothing
    assert [loader.num_workers for loader in built] == [1, 1]
    [message] = [record.getMessage() for record in caplog.records]
    assert message == "dataloader_cfg.num_workers=10 is lowered to 1: 1 CPU cores"


def test_workers_are_forked_whatever_the_default_of_the_process_is():
    default = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        for build in (train_loader, val_loader):
            loader = build(fake_cfg(num_workers=1))
            assert loader.multiprocessing_context
            assert loader.multiprocessing_context.get_start_method() == "fork"
    finally:
        multiprocessing.set_start_method(default, force=True)


def test_memory_is_pinned_for_a_gpu_only():
    cfg = fake_cfg()
    pinned = [cfg.build_val(Axis(), num_classes=10, device_type=kind).pin_memory for kind in ("cpu", "cuda")]
    assert pinned == [False, True]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_image_ends_in_one_plain_message_wherever_it_was_read(tmp_path, case_images, num_workers):
    (tmp_path / "val" / "c0").mkdir(parents=True)
    picture = tmp_path / "val" / "c0" / "broken.JPEG"
    picture.write_bytes((case_images / "zero_bytes.JPEG").read_bytes())
    with pytest.raises(DataError) as stop:
        list(val_loader(toy_cfg(tmp_path, num_workers=num_workers)))
    assert str(stop.value).startswith(f"{picture}: ")
    assert str(stop.value).endswith("the file is empty; replace or remove the file")
    assert multiprocessing.active_children() == []


def test_an_image_of_the_wrong_size_is_named(toy_set):
    with pytest.raises(DataError, match=r"val/c0/0\.JPEG: the image is 72x72 pixels"):
        list(val_loader(toy_cfg(toy_set, input_size=32)))


# --- evaluation


def scored(cfg: DataLoaderCfg, size: int) -> tuple[list[int], list[list[int]]]:
    """Classes scored over all replicas, and the padded size of every step for each replica."""
    targets, sizes = [], []
    for rank in range(size):
        steps = list(PaddedBatches(val_loader(cfg, Axis(rank, size))))
        targets += [int(target) for _, valid in steps for target in valid]
        sizes.append([len(images) for images, _ in steps])
        assert all(len(valid) <= len(images) for images, valid in steps)
        assert all(not images[len(valid) :].any() for images, valid in steps if not cfg.dist_eval)
    return sorted(targets), sizes


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 4, 5, 16])
def test_every_validation_image_is_scored_once_in_equal_steps(toy_set, batch, size):  # A16
    targets, sizes = scored(toy_cfg(toy_set, val_batch_size_per_device=batch), size)
    assert targets == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert all(steps == sizes[0] for steps in sizes)
    assert sum(sizes[0]) == -(-11 // size)


def test_one_image_over_two_replicas_is_scored_once(toy_set):  # A16
    targets, sizes = scored(fake_cfg(fake_data_len=1), 2)
    assert len(targets) == 1
    assert sizes == [[1], [1]]


def test_the_padding_follows_the_images_of_the_replica(toy_set):
    cfg = toy_cfg(toy_set, val_batch_size_per_device=5)
    loader = val_loader(cfg, Axis(1, 2))
    assert isinstance(loader.order, ExactSampler)
    [(own, targets)] = list(loader)
    (images, valid), (empty, no_targets) = PaddedBatches(loader)
    assert torch.equal(images, own)
    assert torch.equal(valid, targets)
    assert (len(valid), len(no_targets), tuple(empty.shape)) == (5, 0, (1, 3, 40, 40))
    assert len(PaddedBatches(loader)) == 2


def test_dist_eval_pads_with_duplicates_as_the_recipe_does_and_says_so_once(toy_set, caplog):
    with caplog.at_level(logging.WARNING, logger="tinyexp"):
        targets, sizes = scored(toy_cfg(toy_set, dist_eval=True), 2)
    assert targets == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]  # the first image twice
    assert sizes == [[4, 2], [4, 2]]
    [message] = [record.getMessage() for record in caplog.records]
    assert "11 images do not divide over 2 replicas; 1 are scored twice" in message
