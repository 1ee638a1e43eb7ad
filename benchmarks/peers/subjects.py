"""The steps that are compared. Each builder runs on every rank and gives a function that takes one whole training step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.link.stock_layout import build_in_stock_layout, build_timm
from benchmarks.peers.by_hand import HandWrittenTP
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.models.vit.presets import ViTShape
from tinyexp.process import Environment
from tinyexp.training.optimizer import OptimizerCfg

Step = Callable[[], None]
NUM_CLASSES = 1000
REPLICATED = ("fabric, hand-written plan", "tutorial layout", "ours, replicated")  # a group's ranks read the same images


@dataclass(frozen=True)
class Setting:
    """The common model and batch."""

    depth: int
    batch: int  # images a rank

    @property
    def shape(self) -> ViTShape:
        return ViTShape(patch_size=16, embed_dim=384, depth=self.depth, num_heads=6)

    def images(self, name: str) -> int:
        """Images that one step of all ranks trains on, counted once."""
        return self.batch if name in REPLICATED or name in ALONE else 2 * self.batch

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(self.batch, 3, 224, 224, generator=generator)
        return images, torch.randint(NUM_CLASSES, (self.batch,), generator=generator)


def ours(setting: Setting, *, accelerator: str = "tp", tail: bool = False, **settings: object) -> Step:
    """Our engine through its accelerator, as `training` calls it."""
    cfg = AcceleratorCfg(accelerator=accelerator, device="cpu", precision="fp32", **settings)  # pyright: ignore[reportArgumentType]
    built = cfg.build(Environment.read(), build_tp_parallelize_plan)
    torch.manual_seed(0)
    model = build_vit(setting.shape, num_classes=NUM_CLASSES, class_token_tail=tail)
    built.prepare(model)
    optimizer = OptimizerCfg().build(model, global_batch=512)
    images, classes = setting.data()

    def step() -> None:
        built.step(F.cross_entropy(built.training_model(images), classes), optimizer)

    return step


def tutorial(setting: Setting) -> Step:
    """Stock PyTorch styles, as in the tutorial on tensor parallelism."""
    ours(setting)  # joins the process group
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    return _loop(build_in_stock_layout(setting.shape, img_size=224, num_classes=NUM_CLASSES, mesh=mesh), setting)


def fabric(setting: Setting) -> Step:
    """Lightning Fabric with the same plan by hand; it sets up model and optimizer, and runs the backward."""
    from lightning.fabric import Fabric  # pyright: ignore[reportMissingImports]  # in the extra `bench`
    from lightning.fabric.strategies import ModelParallelStrategy  # pyright: ignore[reportMissingImports]

    ours(setting)
    strategy = ModelParallelStrategy(
        lambda model, mesh: build_in_stock_layout(
            setting.shape, img_size=224, num_classes=NUM_CLASSES, mesh=mesh["tensor_parallel"]
        ),
        data_parallel_size=1,
        tensor_parallel_size=2,
    )
    runner = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    runner.launch()
    model = runner.setup_module(build_in_stock_layout(setting.shape, img_size=224, num_classes=NUM_CLASSES, mesh=None))
    optimizer: Any = runner.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=5e-4))
    images, classes = setting.data()

    def step() -> None:
        runner.backward(F.cross_entropy(model(images), classes))
        optimizer.step()
        optimizer.zero_grad()

    return step


def data_parallel(setting: Setting) -> Step:
    """timm's own model in DistributedDataParallel."""
    ours(setting)
    return _loop(DistributedDataParallel(build_timm(setting.shape)), setting)


def by_hand(setting: Setting) -> Step:
    """The arithmetic and exchanges of our sharded layout, written out with blocking collectives and nothing else."""
    ours(setting)
    model = HandWrittenTP(build_timm(setting.shape))
    return _loop(model, setting, after_backward=model.average_gradients)


def timm_bare(setting: Setting) -> Step:
    """timm's own model, loss, backward, AdamW."""
    return _loop(build_timm(setting.shape), setting)


def _loop(model: nn.Module, setting: Setting, after_backward: Step | None = None) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    images, classes = setting.data()

    def step() -> None:
        F.cross_entropy(model(images), classes).backward()
        if after_backward:
            after_backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


TOGETHER: dict[str, Callable[[Setting], Step]] = {
    "ddp": data_parallel,
    "tutorial layout": tutorial,
    "fabric, hand-written plan": fabric,
    "hand-written loop": by_hand,
    "ours, sharded": partial(ours, activations="sharded"),
    "ours, sharded, 2 chunks": partial(ours, activations="sharded", overlap_chunks=2),
    "ours, replicated": partial(ours, activations="replicated"),
}
ALONE: dict[str, Callable[[Setting], Step]] = {
    "timm, bare loop": timm_bare,
    "ours, without tail": partial(ours, accelerator="cpu"),
    "ours": partial(ours, accelerator="cpu", tail=True),
}
