"""Known ways to get tensor parallelism wrong. Each changes what `place` of an accelerator does to the model."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from tinyexp.accelerators.base import Accelerator
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.parallel.apply import load_whole
from tinyexp.parallel.styles import EnterShards


def cut_qkv_contiguously(accelerator: Accelerator) -> None:
    """Give each of two ranks a contiguous half of the stacked q, k, v rows, as a plain column split of the fused weight does."""
    place = accelerator.place

    def place_permuted(model: nn.Module) -> nn.Module:
        state = model.state_dict()
        for name in [name for name in state if ".attn.q." in name]:
            stacked = torch.cat([state[name.replace(".q.", f".{part}.")] for part in "qkv"])
            parts = torch.stack([torch.stack(half.chunk(3)) for half in stacked.chunk(2)])  # (rank, part, rows, ...)
            for index, part in enumerate("qkv"):
                state[name.replace(".q.", f".{part}.")] = parts[:, index].flatten(0, 1)
        load_whole(model, state)
        return place(model)

    accelerator.place = place_permuted


def enter_each_of_q_k_v(accelerator: Accelerator) -> None:
    """Sum the gradient of the attention's input three times, once for each of q, k, v."""

    def change(plan: dict[str, ParallelStyle]) -> None:
        for part in "qkv":
            plan[f"blocks.*.attn.{part}"] = _Both(EnterShards("replicated"), plan.pop(f"blocks.*.attn.{part}"))
        del plan["blocks.*.attn"]

    _change_plan(accelerator, change)


def enter_none_of_q_k_v(accelerator: Accelerator) -> None:
    """Never sum the gradient of the attention's input."""
    _change_plan(accelerator, lambda plan: plan.pop("blocks.*.attn"))


def _change_plan(accelerator: Accelerator, change: Callable[[dict[str, ParallelStyle]], object]) -> None:
    plan = build_tp_parallelize_plan("replicated")
    change(plan)

    def place(model: nn.Module) -> nn.Module:
        assert accelerator.mesh.device_mesh is not None
        return parallelize_module(model, accelerator.mesh.device_mesh["tp"], plan)

    accelerator.place = place


class _Both(ParallelStyle):
    def __init__(self, *styles: ParallelStyle) -> None:
        super().__init__()
        self.styles = styles

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for style in self.styles:
            module = style._apply(module, device_mesh)
        return module
