import pytest

from tinyexp.errors import DataError
from tinyexp.training.same_set import require_same_classes


def compared(then: list[str], now: list[str]) -> list[str]:
    return require_same_classes(then, now, source="last.ckpt", advice="use the same set")


def test_equal_names_and_missing_names_need_no_word():
    assert compared(["cat", "dog"], ["cat", "dog"]) == compared([], ["cat"]) == compared(["cat"], []) == []


def test_other_names_are_refused_and_the_message_shows_where_they_part():
    with pytest.raises(DataError) as stop:
        compared(["ant", "bee", "cat", "dog", "eel", "fox"], ["ant", "bee", "cow", "dog"])
    assert str(stop.value) == (
        "checkpoint last.ckpt was trained on 6 classes (…, cat, dog, eel, …), dataloader_cfg.data_root has 4 (…, cow, dog): "
        "they differ from class 2 on; use the same set"
    )


@pytest.mark.parametrize(("then", "now"), [(["0", "1"], ["cat", "dog"]), (["cat", "dog"], ["0", "1"])])
def test_numbers_for_names_cannot_be_compared_and_the_note_says_so(then, now):
    [note] = compared(then, now)
    assert "classes have numbers for names" in note
