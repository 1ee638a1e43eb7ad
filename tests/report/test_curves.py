from pathlib import Path

import pytest

from tinyexp.report.run_files import RunFolder
from tinyexp.report.sections import curves


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1}, "mixed and smoothed targets"),
        ({"mixup": 0.0, "cutmix": 1.0, "smoothing": 0.0}, "mixed targets"),
        ({"mixup": 0.0, "cutmix": 0.0, "smoothing": 0.1}, "smoothed targets"),
        ({"mixup": 0.0, "cutmix": 0.0, "smoothing": 0.0}, ""),
    ],
)
def test_training_losses_are_explained_as_the_recipe_of_the_run_makes_them(recipe, told):
    rows = [{"epoch": epoch, "train_loss": 2.0, "test_loss": 1.0, "test_acc1": 50.0, "train_lr": 1e-3} for epoch in range(2)]
    section = curves(RunFolder(Path(), {"config": {"loss_cfg": recipe}}, {}, {}, rows, [], is_running=False))
    assert section is not None
    assert [text.split(" and so ")[0] for text in section.text] == ([f"Training losses are those of {told},"] if told else [])
