import pytest
import torch

from tests.helpers.equality import build_noisy
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.divergence import check_agreement, digest
from tinyexp.errors import Diverged

NAME = "deit_digits_patch8_32"


def message_after(settings: dict[str, object], change: str, ranks: list[int]) -> str:
    """What a rank hears of a change that only some ranks made."""
    accelerator = build_accelerator(**settings)
    accelerator.prepare(build_noisy(NAME))
    batch = [torch.ones(2, 3), torch.arange(2)]
    check_agreement(accelerator, step=4, batch=[tensor + accelerator.replica.rank for tensor in batch])
    if accelerator.world.rank in ranks:
        with torch.no_grad():
            if change == "batch":
                batch[0][0, 0] += 1
            else:
                accelerator.parameters.by_name[change].view(-1)[0] += 1e-6
    try:
        check_agreement(accelerator, step=5, batch=[tensor + accelerator.replica.rank for tensor in batch])
    except Diverged as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("settings", "change", "named"),
    [
        ({"accelerator": "ddp"}, "blocks.1.attn.q.weight", "blocks.1.attn.q.weight of rank 1"),
        ({"activations": "sharded"}, "head.weight", "head.weight of rank 1"),
        ({"activations": "replicated"}, "head.weight", "head.weight of rank 1"),
        ({"activations": "replicated"}, "batch", "tensor 0 of the batch of rank 1"),
        ({"activations": "sharded"}, "batch", ""),  # every rank reads its own images
        ({"activations": "sharded"}, "blocks.1.attn.q.weight", ""),  # every rank has its own shard
    ],
)
def test_a_difference_is_named_on_every_rank_and_what_may_differ_is_not(settings, change, named):
    first, second = run_on_ranks(message_after, 2, settings, change, [1])
    assert first == second
    assert named in first
    assert bool(first) == bool(named)
    assert not named or "at step 5" in first


def test_a_shard_is_compared_over_the_data_parallel_axis():
    found = run_on_ranks(message_after, 4, {"activations": "sharded", "tp_size": 2}, "blocks.1.attn.q.weight", [3])
    assert set(found) == {found[0]}
    assert "blocks.1.attn.q.weight of rank 3 is not that of the other ranks with the same shard (rank 1)" in found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_a_digest_changes_with_a_bit_and_with_the_order(dtype):
    tensor = torch.arange(1, 101).to(dtype)
    flipped, swapped = tensor.clone(), tensor.clone()
    bits = flipped.view(torch.uint8)
    bits[3] ^= 1
    swapped[[0, 1]] = swapped[[1, 0]]
    assert len({digest(each) for each in (tensor, flipped, swapped)}) == 3
    assert digest(tensor) == digest(tensor.clone())
