"""The same training on a mesh and on one process, and how far apart the two end."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from tests.helpers.ranks import build_accelerator
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.presets import PRESETS, ViTShape
from tinyexp.parallel.report import TrafficCounter
from tinyexp.training.optimizer import OptimizerCfg

GLOBAL_BATCH = 8  # images of a step on every mesh; the recipe's learning rate for it is 7.8e-6
STEPS = 3
MODELS = {
    "deit_small_2_blocks": (ViTShape(patch_size=16, embed_dim=384, depth=2, num_heads=6), 64),
    "deit_digits_patch8_32": (PRESETS["deit_digits_patch8_32"], 32),
}


@dataclass(frozen=True)
class Differences:
    """Largest absolute differences from one process, on one rank."""

    logits: float
    gradients: float
    gradient_norm: float  # relative
    weights: float  # after the steps, key biases left out
    key_bias: float  # after the steps
    moved: float  # how far the steps moved a weight at most
    collectives: dict[str, int]  # calls of one forward and backward


def assert_equal_in_float32(found: Differences) -> None:
    """Within what sums of some thousand float32 numbers in another order explain."""
    assert found.logits < 1e-5
    assert found.gradients < 1e-5
    assert found.gradient_norm < 1e-5
    assert found.weights < 1e-5
    # Weights that never moved would pass a bound that the steps themselves do not reach.
    assert found.moved > 2e-5


def assert_equal_in_float64(found: Differences) -> None:
    assert found.logits < 1e-9
    assert found.gradients < 1e-9
    assert found.gradient_norm < 1e-9
    assert found.weights < 1e-9
    assert found.key_bias < 1e-9
    assert found.moved > 2e-5


def build_noisy(name: str, dtype: torch.dtype = torch.float32) -> VisionTransformer:
    """A model whose attention is far from uniform: every weight carries seeded noise."""
    shape, size = MODELS[name]
    torch.manual_seed(0)
    model = build_vit(shape, img_size=size, num_classes=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model.to(dtype)


def batches(name: str, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """The images and classes of each step, of all replicas together."""
    size = MODELS[name][1]
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(GLOBAL_BATCH, 3, size, size, generator=generator).to(dtype),
            torch.randint(10, (GLOBAL_BATCH,), generator=generator),
        )
        for _ in range(STEPS)
    ]


def differences_from_one_process(
    name: str,
    settings: dict[str, object],
    dtype: torch.dtype = torch.float32,
    clip_grad: float | None = None,
    sabotage: Callable[[Accelerator], None] | None = None,
) -> Differences:
    """Three AdamW steps on this rank's mesh against one process that reads the images of all replicas.

    Every rank calls it. The learning rate is the recipe's for this global batch.
    """
    torch.set_num_threads(1)
    accelerator = build_accelerator(**settings)
    replica = accelerator.replica
    share = GLOBAL_BATCH // replica.size
    mine = slice(replica.rank * share, (replica.rank + 1) * share)
    data = batches(name, dtype)
    reference = _train(CPUAccelerator(), build_noisy(name, dtype), data, clip_grad)
    start = build_noisy(name, dtype).state_dict()
    if sabotage:
        sabotage(accelerator)
    own = _train(accelerator, build_noisy(name, dtype), [(images[mine], classes[mine]) for images, classes in data], clip_grad)
    key_biases = {key for key in own.weights if key.endswith("attn.k.bias")}
    others = own.weights.keys() - key_biases
    return Differences(
        logits=_distance(own.logits, reference.logits[mine]),
        gradients=max(_distance(own.gradients[key], reference.gradients[key]) for key in reference.gradients),
        gradient_norm=abs(own.norm / reference.norm - 1),
        weights=max(_distance(own.weights[key], reference.weights[key]) for key in others),
        key_bias=max(_distance(own.weights[key], reference.weights[key]) for key in key_biases),
        moved=max(_distance(own.weights[key], start[key]) for key in others),
        collectives=_count_collectives(accelerator, *((part[mine]) for part in data[0])),
    )


@dataclass
class _Trained:
    logits: Tensor
    gradients: dict[str, Tensor]
    norm: float
    weights: dict[str, Tensor]


def _train(accelerator: Accelerator, model: nn.Module, data: list[tuple[Tensor, Tensor]], clip_grad: float | None) -> _Trained:
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=GLOBAL_BATCH)
    images, classes = data[0]
    logits = accelerator.training_model(images)
    accelerator.backward(F.cross_entropy(logits, classes))
    gradients = accelerator.whole_like_weights(
        {key: value.grad for key, value in accelerator.parameters.by_name.items() if value.grad is not None}
    )
    gradients = {key: value.clone() for key, value in gradients.items()}
    norm = accelerator.gradient_norm().item()
    accelerator.parameters.clear_gradients()
    for images, classes in data:
        accelerator.step(F.cross_entropy(accelerator.training_model(images), classes), optimizer, clip_grad=clip_grad)
    weights = {key: value.clone() for key, value in accelerator.whole_weights().items()}
    return _Trained(logits.detach(), gradients, norm, weights)


def _count_collectives(accelerator: Accelerator, images: Tensor, classes: Tensor) -> dict[str, int]:
    with TrafficCounter() as counter:
        F.cross_entropy(accelerator.model(images), classes).backward()
    accelerator.reduce_gradients()
    accelerator.parameters.clear_gradients()
    return {line.kind: line.calls for line in counter.traffic}


def _distance(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()
