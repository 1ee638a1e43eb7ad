import torch

from tests.helpers.equality import build_noisy
from tinyexp.models.vit.attention import Attention
from tinyexp.models.vit.attention_maps import attention_weights, class_attention
from tinyexp.models.vit.block import Block
from tinyexp.models.vit.build import ModuleCfg

NAME = "deit_digits_patch8_32"
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_weights_are_those_with_which_the_model_mixes_its_values():
    torch.manual_seed(0)
    attention, tokens = Attention(12, num_heads=1), torch.randn(2, 5, 12)
    mixed = attention_weights(attention, tokens) @ attention.v(tokens)
    torch.testing.assert_close(attention.proj(mixed), attention(tokens))


def test_the_class_token_alone_gives_the_maps_of_all_tokens():
    torch.manual_seed(0)
    tail = build_noisy(NAME)
    whole = ModuleCfg(NAME, img_size=32, num_classes=10, drop_path_rate=0.0, class_token_tail=False).build()
    whole.load_state_dict(tail.state_dict())
    one, other = class_attention(tail, IMAGES), class_attention(whole, IMAGES)
    for name in ("logits", "last_block", "rollout"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_the_rollout_is_the_product_of_all_blocks():
    model = build_noisy(NAME)
    seen, tokens = [], model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(IMAGES))))
    for block in model.eval().blocks:
        assert isinstance(block, Block)
        block.attn.num_queries = None
        attention = attention_weights(block.attn, block.norm1(tokens))
        seen.append((attention + torch.eye(attention.shape[-1])) / 2)
        block.attn.num_queries = block.num_tokens
        tokens = block(tokens)
    product = torch.eye(17).expand(3, -1, -1)
    for each in seen:
        product = each @ product
    found = class_attention(model, IMAGES)
    torch.testing.assert_close(found.rollout.flatten(1), product[:, 0, 1:])
    assert found.rollout.shape == found.last_block.shape == (3, 4, 4)
    assert ((found.rollout.sum((1, 2)) > 0) & (found.rollout.sum((1, 2)) < 1)).all()
