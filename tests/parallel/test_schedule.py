"""Chunks whose exchanges overlap train as one process does, and never wait for nothing."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from timm.layers.drop import DropPath
from torch import Tensor

from tests.helpers.equality import MODELS, assert_equal_in_float32, assert_equal_in_float64, batches, differences_from_one_process
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.models.vit.build import build_vit
from tinyexp.parallel.collectives import Exchange
from tinyexp.parallel.schedule import ActivationLayout, Branch, ParallelBlocks, in_turns

LAYOUTS = ["sharded", "replicated"]
NAME = "deit_digits_patch8_32"


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("chunks", [2, 3, 4, 64])
def test_chunks_equal_one_process(activations, chunks):  # 4 or 8 images a rank: chunks of unequal sizes, and more than images
    settings = {"activations": activations, "overlap_chunks": chunks}
    for found in run_on_ranks(differences_from_one_process, 2, NAME, settings, torch.float64):
        assert_equal_in_float64(found)


@pytest.mark.parametrize("activations", LAYOUTS)
def test_chunks_equal_one_process_in_float32_on_deit_small_blocks(activations):
    settings = {"activations": activations, "overlap_chunks": 4}
    for found in run_on_ranks(differences_from_one_process, 2, "deit_small_2_blocks", settings):
        assert_equal_in_float32(found)


@pytest.mark.parametrize("activations", LAYOUTS)
def test_chunks_on_dp_2_times_tp_2_equal_one_process(activations):
    settings = {"activations": activations, "tp_size": 2, "overlap_chunks": 2}
    for found in run_on_ranks(differences_from_one_process, 4, NAME, settings, torch.float64):
        assert_equal_in_float64(found)


def one_step(settings: dict[str, object], options: dict[str, object], layer_scale: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, gradients and drop-path masks of one training step in the accelerator's precision."""
    torch.set_num_threads(1)
    accelerator = build_accelerator(**settings)
    torch.manual_seed(3)
    model = build_vit(MODELS[NAME][0], img_size=32, num_classes=10, drop_path_rate=0.4, **options)  # pyright: ignore
    if layer_scale:
        for block in model.blocks:
            block.ls1 = LayerScaleOf(0.5)
            block.ls2 = LayerScaleOf(0.25)
    accelerator.prepare(model)
    model.train()
    images, classes = batches(NAME)[0]
    torch.manual_seed(7)
    with accelerator.autocast():
        logits = accelerator.training_model(images.to(accelerator.dtype))
    accelerator.backward(F.cross_entropy(logits.float(), classes))
    gradients = {name: value.grad for name, value in accelerator.parameters.by_name.items() if value.grad is not None}
    return logits.detach(), accelerator.whole_like_weights(gradients)


class LayerScaleOf(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.full((96,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


@pytest.mark.parametrize("activations", LAYOUTS)
@pytest.mark.parametrize("recompute", ["none", "gelu", "block"])
@pytest.mark.parametrize("layer_scale", [False, True])
def test_drop_path_layer_scale_and_recomputation_equal_one_process(activations, recompute, layer_scale):
    settings = {"activations": activations, "overlap_chunks": 3, "precision": "fp64"}
    options = {"recompute": recompute}
    for logits, gradients in run_on_ranks(one_step, 2, settings, options, layer_scale):
        expected, expected_gradients = one_step({"accelerator": "cpu", "precision": "fp64"}, {}, layer_scale)
        assert (logits - expected).abs().max() < 1e-12
        for name, value in expected_gradients.items():
            assert (gradients[name] - value).abs().max() < 1e-12, name


@pytest.mark.parametrize("activations", LAYOUTS)
def test_chunks_under_autocast_equal_the_same_mesh_without_them(activations):
    settings = {"activations": activations, "precision": "bf16"}
    together = run_on_ranks(one_step, 2, settings, {}, False)
    in_chunks = run_on_ranks(one_step, 2, settings | {"overlap_chunks": 4}, {}, False)
    for (logits, gradients), (expected, expected_gradients) in zip(in_chunks, together, strict=True):
        # Each image's products are the same; only sums over the batch are taken in another order, in 8 bits of mantissa.
        assert (logits - expected).abs().max() < 2**-6
        for name, value in expected_gradients.items():
            assert (gradients[name] - value).norm() <= 2**-6 * value.norm() + 1e-6, name


def test_drop_path_masks_are_drawn_for_the_batch_and_not_for_each_chunk():
    drop_path = DropPath(0.5)
    drop_path.train()
    torch.manual_seed(0)
    whole = drop_path(torch.ones(8, 1, 1))
    torch.manual_seed(0)
    assert torch.equal(drop_path(torch.ones(8, 5, 3)), whole.expand(8, 5, 3))


def test_walks_take_turns_until_each_has_returned():
    order: list[tuple[str, int]] = []

    def walk(name: str, steps: int):
        for step in range(steps):
            order.append((name, step))
            yield
        return torch.tensor(steps)

    assert [int(value) for value in in_turns([walk("a", 2), walk("b", 3)])] == [2, 3]
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2)]


class Recorder:
    """An exchange without a wire that notes how many transfers are on their way at once."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most = 0

    def start(self, tokens: Tensor, group: object) -> Callable[[], Tensor]:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        sent = tokens.clone()

        def wait() -> Tensor:
            self.in_flight -= 1
            return sent

        return wait


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_as_many_exchanges_are_under_way_as_there_are_chunks_in_forward_and_in_backward(chunks):
    ahead, back = Recorder(), Recorder()
    blocks = ParallelBlocks()
    linear = torch.nn.Linear(3, 3, bias=False)
    same = torch.nn.Identity()
    exchange = Exchange(ahead.start, back.start)
    blocks.branches = [Branch(same, torch.nn.Linear(3, 3), linear, same, same) for _ in range(3)]
    blocks.layout, blocks.num_chunks = ActivationLayout(exchange, exchange), chunks
    blocks.group = None  # pyright: ignore[reportAttributeAccessIssue]
    tokens = torch.randn(8, 2, 3, requires_grad=True)
    added = blocks(tokens)
    assert (ahead.most, ahead.in_flight, back.most) == (chunks, 0, 0)
    added.square().sum().backward()
    assert (back.most, back.in_flight) == (chunks, 0)
    plain = tokens.detach().clone().requires_grad_()
    expected = plain
    for branch in blocks.branches:
        expected = expected + branch.body(expected)
    expected.square().sum().backward()
    assert tokens.grad is not None and plain.grad is not None
    torch.testing.assert_close(added, expected)
    torch.testing.assert_close(tokens.grad, plain.grad)
