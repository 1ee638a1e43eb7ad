"""What DataLoaderCfg refuses before anything is built."""

import pytest
from omegaconf import OmegaConf

from tests.data_room.configs import fake_cfg, toy_cfg
from tinyexp.data.loaders import DataLoaderCfg


def test_every_default_fits_a_typed_schema(monkeypatch):
    monkeypatch.setenv("IMAGENET_HOME", "/images")
    schema = OmegaConf.structured(DataLoaderCfg)
    assert schema.data_root == "/images"
    monkeypatch.delenv("IMAGENET_HOME")
    assert DataLoaderCfg().data_root == "./data/imagenet/"


def test_a_good_configuration_has_no_problem(toy_set):
    assert toy_cfg(toy_set).problems(mixup_active=True, num_classes=4) == []
    assert fake_cfg().problems(mixup_active=True, num_classes=10) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_batch_size_per_device", 0),
        ("val_batch_size_per_device", 0),
        ("num_workers", -1),
        ("fake_data_len", 0),
        ("input_size", 0),
        ("num_repeats", 0),
        ("recount", 0),
        ("color_jitter", -0.1),
        ("reprob", 1.5),
        ("reprob", float("nan")),
        ("eval_crop_ratio", 0.0),
        ("max_bad_fraction", -0.1),
        ("max_bad_fraction", float("nan")),
        ("data_format", "webdataset"),
        ("remode", "pixels"),
        ("train_interpolation", "cubic"),
        ("auto_augment", "rand-x9"),
    ],
)
def test_a_value_that_cannot_work_is_one_problem_that_names_the_key_and_the_value(key, value):
    [problem] = fake_cfg(**{key: value}).problems(mixup_active=False, num_classes=10)
    assert problem.replace(":", " ").startswith(f"dataloader_cfg.{key}={value} ")


def test_all_problems_come_at_once(tmp_path):
    cfg = DataLoaderCfg(data_root=str(tmp_path), reprob=-1, remode="x", num_workers=-1, train_batch_size_per_device=7)
    problems = cfg.problems(mixup_active=True, num_classes=10)
    assert len(problems) == 5
    assert all("dataloader_cfg." in problem for problem in problems)


@pytest.mark.parametrize(("batch", "advice"), [(7, "use 6 or 8"), (1, "use 2")])  # A03 (c), (d)
def test_an_odd_batch_with_mixup_is_refused_with_batches_that_work(batch, advice):
    [problem] = fake_cfg(train_batch_size_per_device=batch).problems(mixup_active=True, num_classes=10)
    assert problem.startswith(f"dataloader_cfg.train_batch_size_per_device={batch} is odd")
    assert advice in problem
    assert "loss_cfg.mixup=0 loss_cfg.cutmix=0" in problem
    assert fake_cfg(train_batch_size_per_device=batch).problems(mixup_active=False, num_classes=10) == []


def test_an_evaluation_hears_nothing_about_training(toy_set):
    cfg = toy_cfg(toy_set, train_batch_size_per_device=7, remode="x")
    assert cfg.problems(mixup_active=True, num_classes=4, splits=("val",)) == []
