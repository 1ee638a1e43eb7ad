import pytest
import torch

from tests.golden.record import checksum, formula_weights, forward_batch, images_and_classes, load, sha256, total


def test_images_and_classes_are_rebuilt_bit_for_bit():
    recorded = load("inputs")["sha256_little_endian_c_order"]
    for split in ("train", "val"):
        images, classes = images_and_classes(split)
        assert sha256(images) == recorded[f"{split}_images_f32"]
        assert sha256(classes) == recorded[f"{split}_labels_i64"]
    assert sha256(forward_batch("golden_small")[0]) == recorded["forward_small_images_f32"]
    assert sha256(forward_batch("deit_small_patch16_224")[0]) == recorded["forward_deit_s_images_f32"]


@pytest.mark.parametrize("model", ["golden_small", "golden_nano", "deit_small_patch16_224"])
def test_weights_are_rebuilt_bit_for_bit(model):
    recorded = load("model")["models"][model]["formula_sha256_f32"]
    assert {name: sha256(value) for name, value in formula_weights(model).items()} == recorded


def test_a_checksum_notices_what_a_sum_and_a_norm_miss():
    values = torch.arange(12.0).view(3, 4)
    first, second = checksum(values), checksum(values.T)
    assert (first["sum"], first["l2"]) == (second["sum"], second["l2"])
    assert abs(first["wsum"] - second["wsum"]) > 0.1
    assert total([values, values])["l2"] == pytest.approx(2**0.5 * first["l2"])
