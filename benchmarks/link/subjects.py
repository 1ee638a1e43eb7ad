"""What is compared on the link: a layout, with or without overlap, as one whole training step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.link.stock_layout import build_in_stock_layout
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.models.vit.presets import ViTShape
from tinyexp.parallel.report import Traffic, TrafficCounter
from tinyexp.process import Environment
from tinyexp.training.optimizer import OptimizerCfg

NUM_CLASSES = 1000
Step = Callable[[], None]


@dataclass(frozen=True)
class Subject:
    """One line of the table."""

    layout: str  # stock, ddp, sharded or replicated
    overlap_chunks: int = 1
    tail: bool = False

    def __str__(self) -> str:
        chunks = f" {self.overlap_chunks} chunks" if self.overlap_chunks > 1 else ""
        return f"{self.layout}{chunks}{', tail' if self.tail else ''}"

    def images_of_a_step(self, batch: int) -> int:
        """`batch` images in a tensor-parallel group, and on each of two data-parallel ranks."""
        return 2 * batch if self.layout == "ddp" else batch


@dataclass(frozen=True)
class Twin:
    """A small DeiT with the ratio of activation to gradient bytes that DeiT-S has at batch 256: batch / embed_dim = 2 / 3."""

    shape: ViTShape
    batch: int  # images of a group
    img_size: int = 224
    precision: str = "bf16"


def build_step(subject: Subject, twin: Twin) -> Step:
    """Forward, loss, backward, reduction and update on this rank. Every rank must call it, and the step, together."""
    accelerator = AcceleratorCfg(
        accelerator="ddp" if subject.layout == "ddp" else "tp",
        activations=subject.layout if subject.layout in ("sharded", "replicated") else "replicated",
        overlap_chunks=subject.overlap_chunks,
        precision=twin.precision,
        tp_across_nodes=True,
        device="cpu",
    ).build(Environment.read(), build_tp_parallelize_plan)
    images_here = twin.batch // 2 if subject.layout == "sharded" else twin.batch
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(images_here, 3, twin.img_size, twin.img_size, generator=generator)
    targets = torch.randint(NUM_CLASSES, (images_here,), generator=generator)
    if subject.layout == "stock":
        model = build_in_stock_layout(
            twin.shape, img_size=twin.img_size, num_classes=NUM_CLASSES, mesh=init_device_mesh("cpu", (2,))
        )
        return _plain_step(model, images, targets, accelerator.autocast)
    torch.manual_seed(0)
    model = build_vit(twin.shape, img_size=twin.img_size, num_classes=NUM_CLASSES, class_token_tail=subject.tail)
    accelerator.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=512)

    def step() -> None:
        with accelerator.autocast():
            loss = _loss(accelerator.training_model, images, targets)
        accelerator.step(loss, optimizer)

    return step


def count(step: Step) -> list[Traffic]:
    """What one step sends from this rank."""
    with TrafficCounter() as counter:
        step()
    return counter.traffic


def _plain_step(model: nn.Module, images: Tensor, targets: Tensor, autocast: Callable) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

    def step() -> None:
        with autocast():
            loss = _loss(model, images, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(images).float(), targets)
