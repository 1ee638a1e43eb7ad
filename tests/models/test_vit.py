import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.build import (
    ModuleCfg,
    build_vit,
    deit_base_patch16_224,
    deit_small_patch16_224,
    deit_tiny_patch16_224,
)
from tinyexp.models.vit.convert import convert_fused_qkv_to_split, convert_split_qkv_to_fused
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.apply import Parameters

SMALL = ViTShape(patch_size=8, embed_dim=48, depth=2, num_heads=3)


def timm_twin(shape: ViTShape, img_size: int, num_classes: int) -> VisionTransformer:
    return VisionTransformer(
        img_size=img_size,
        patch_size=shape.patch_size,
        embed_dim=shape.embed_dim,
        depth=shape.depth,
        num_heads=shape.num_heads,
        num_classes=num_classes,
    )


@pytest.mark.parametrize(
    ("build", "parameters"),
    [(deit_tiny_patch16_224, 5_717_416), (deit_small_patch16_224, 22_050_664), (deit_base_patch16_224, 86_567_656)],
)
def test_the_family_has_the_published_parameter_counts(build, parameters):
    with torch.device("meta"):
        assert Parameters(build()).num_whole() == parameters


def test_deit_small_starts_bit_equal_to_timm_and_leaves_its_random_state():
    torch.manual_seed(0)
    ours = deit_small_patch16_224()
    left = torch.get_rng_state()
    torch.manual_seed(0)
    theirs = timm.create_model("deit_small_patch16_224")
    assert torch.equal(left, torch.get_rng_state())
    fused = convert_split_qkv_to_fused(ours.state_dict())
    assert list(fused) == list(theirs.state_dict())
    assert len(fused) == 152
    assert all(torch.equal(fused[name], value) for name, value in theirs.state_dict().items())


def test_converting_there_and_back_is_exact():
    state = build_vit(SMALL, img_size=32, num_classes=4).state_dict()
    back = convert_fused_qkv_to_split(convert_split_qkv_to_fused(state))
    assert list(back) == list(state)
    assert all(torch.equal(back[name], value) for name, value in state.items())
    fused = timm_twin(SMALL, 32, 4).state_dict()
    again = convert_split_qkv_to_fused(convert_fused_qkv_to_split(fused))
    assert list(again) == list(fused)
    assert all(torch.equal(again[name], value) for name, value in fused.items())


def test_a_state_without_one_of_q_k_v_cannot_be_fused():
    state = build_vit(SMALL, img_size=32, num_classes=4).state_dict()
    for lost in ("q", "k", "v"):
        partial = {name: value for name, value in state.items() if f"blocks.0.attn.{lost}.weight" != name}
        with pytest.raises(ValueError, match=rf"missing blocks\.0\.attn\.{lost}\.weight"):
            convert_split_qkv_to_fused(partial)


def test_fused_rows_that_are_not_three_parts_are_refused():
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.qkv\.weight has 10 rows"):
        convert_fused_qkv_to_split({"blocks.0.attn.qkv.weight": torch.zeros(10, 4)})


def test_split_attention_equals_fused_timm_within_1e_6_and_in_its_gradients():
    torch.manual_seed(1)
    ours, theirs = build_vit(SMALL, img_size=32, num_classes=4), timm_twin(SMALL, 32, 4)
    noisy = {name: value + 0.1 * torch.randn_like(value) for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(noisy)
    ours.load_state_dict(convert_fused_qkv_to_split(noisy))
    images = torch.randn(3, 3, 32, 32)
    logits, expected = ours(images), theirs(images)
    assert (logits - expected).abs().max() < 1e-6
    logits.square().sum().backward()
    expected.square().sum().backward()
    own = convert_split_qkv_to_fused({name: value.grad for name, value in ours.named_parameters() if value.grad is not None})
    for name, value in theirs.named_parameters():
        assert value.grad is not None
        torch.testing.assert_close(own[name], value.grad, rtol=1e-4, atol=1e-5)


def test_attention_of_some_heads_runs_the_same_code():
    whole, part = Attention(12, num_heads=3), Attention(12, num_heads=3)
    rows = slice(4, 12)  # the last two heads
    for name in ("q", "k", "v"):
        getattr(part, name).weight = torch.nn.Parameter(getattr(whole, name).weight[rows])
        getattr(part, name).bias = torch.nn.Parameter(getattr(whole, name).bias[rows])
    part.proj.weight = torch.nn.Parameter(whole.proj.weight[:, rows])
    tokens = torch.randn(2, 5, 12)
    assert part(tokens).shape == whole(tokens).shape


def test_attention_refuses_norms_and_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="qk_norm=True"):
        Attention(12, num_heads=3, qk_norm=True)
    with pytest.raises(ValueError, match=r"embed_dim=12 is not a multiple of num_heads=5"):
        Attention(12, num_heads=5)


def test_sizes_override_the_preset_and_impossible_ones_are_all_named():
    assert ModuleCfg(depth=2, embed_dim=96, num_heads=6).shape() == ViTShape(16, 96, 2, 6)
    assert ModuleCfg().shape() == PRESETS["deit_small_patch16_224"]
    assert ModuleCfg().problems() == []
    problems = "\n".join(ModuleCfg(num_heads=5, img_size=100, drop_path_rate=1.5).problems())
    for part in ("module_cfg.num_heads=5", "module_cfg.img_size=100", "module_cfg.drop_path_rate=1.5"):
        assert part in problems
    assert "nearest: deit_small_patch16_224" in ModuleCfg(model_name="deit_smal_patch16_224").problems()[0]
    assert "module_cfg.depth=0" in ModuleCfg(depth=0).problems()[0]
