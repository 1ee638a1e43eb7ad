"""What the plan predicts is what goes over the wire, call by call and byte by byte."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.link.stock_layout import build_in_stock_layout
from tests.helpers.equality import MODELS
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import branches, residual_stream
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.report import Traffic, TrafficCounter, branch_traffic, total

NAME = "deit_digits_patch8_32"
IMAGES = 6


def predicted_and_counted(settings: dict[str, object], options: dict[str, object]) -> tuple[list[Traffic], list[Traffic]]:
    torch.set_num_threads(1)
    accelerator = build_accelerator(**settings)
    model = build_vit(MODELS[NAME][0], img_size=32, num_classes=10, **options)  # pyright: ignore[reportArgumentType]
    accelerator.prepare(model)
    counter = TrafficCounter()
    for _ in range(3):  # DistributedDataParallel forms its buckets anew after the first step
        counter = TrafficCounter()
        with counter:
            with accelerator.autocast():
                logits = accelerator.training_model(torch.randn(IMAGES, 3, 32, 32))
            accelerator.backward(F.cross_entropy(logits.float(), torch.zeros(IMAGES, dtype=torch.long)))
        accelerator.parameters.clear_gradients()
    return total(accelerator.traffic(residual_stream(model, IMAGES)), by_purpose=False), counter.traffic


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (2, {"activations": "sharded"}),
        (2, {"activations": "replicated"}),
        (2, {"activations": "sharded", "overlap_chunks": 4, "precision": "bf16"}),
        (2, {"activations": "replicated", "overlap_chunks": 4, "precision": "bf16"}),
        (2, {"accelerator": "ddp"}),
        (4, {"activations": "sharded", "tp_size": 2}),
        (4, {"activations": "replicated", "tp_size": 2, "overlap_chunks": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"class_token_tail": False, "recompute": "block"}], ids=["tail", "recompute"])
def test_the_prediction_is_what_is_counted(ranks, settings, options):
    for predicted, counted in run_on_ranks(predicted_and_counted, ranks, settings, options):
        assert predicted == counted
        assert sum(line.calls for line in counted) > 0


def counted(layout: str) -> tuple[int, int]:
    """Calls and bytes of one forward and backward under autocast, two blocks without the tail, gradients left out."""
    torch.set_num_threads(1)
    accelerator = build_accelerator(activations="sharded" if layout == "sharded" else "replicated", precision="bf16")
    shape = ViTShape(patch_size=16, embed_dim=48, depth=2, num_heads=2)
    images = torch.randn(IMAGES // accelerator.replica.size, 3, 64, 64)
    if layout == "stock":
        model = build_in_stock_layout(shape, img_size=64, num_classes=10, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = build_vit(shape, img_size=64, num_classes=10, class_token_tail=False)
        accelerator.place(model)
    with TrafficCounter() as counter, accelerator.autocast():
        model(images).float().square().sum().backward()
    return counter.calls, sum(line.sent_bytes for line in counter.traffic)


def test_the_layout_of_stock_styles_makes_half_as_many_calls_again_and_sends_two_and_a_half_times_the_bytes():
    (calls, stock_bytes), *_ = run_on_ranks(counted, 2, "stock")
    assert calls == 6 * 2  # 72 for DeiT-S, where ours makes 48
    for layout, own_calls in (("replicated", 4 * 2), ("sharded", 8 * 2)):
        (calls, own_bytes), *_ = run_on_ranks(counted, 2, layout)
        assert calls == own_calls
        assert own_bytes / stock_bytes <= 0.42


def deit_small(activations: str, *, tail: bool = True, num_chunks: int = 1) -> list[Traffic]:
    with torch.device("meta"):
        model = build_vit(PRESETS["deit_small_patch16_224"], class_token_tail=tail)
    return branch_traffic(
        [branch for block in model.blocks for branch in branches(block)],
        activations=activations,
        tp_size=2,
        num_chunks=num_chunks,
        shape=residual_stream(model, 256 if activations == "replicated" else 128),
        itemsize=2,
    )


def test_deit_small_makes_48_all_reduces_a_step_or_48_pairs_of_half_the_size():
    (reduces,) = deit_small("replicated")
    assert reduces.calls == 48
    pairs = deit_small("sharded")
    assert [(line.kind, line.calls) for line in pairs] == [("all-gather", 48), ("reduce-scatter", 48)]
    assert sum(line.sent_bytes for line in pairs) == reduces.sent_bytes


def test_the_tail_sends_one_token_in_three_of_the_last_four_exchanges():
    (whole,), (tail,) = deit_small("replicated", tail=False), deit_small("replicated")
    image = 384 * 2 * 256  # bytes of one token of all images in bfloat16
    assert whole.sent_bytes == 48 * 197 * image
    assert whole.sent_bytes - tail.sent_bytes == 3 * 196 * image
    assert tail.calls == whole.calls
