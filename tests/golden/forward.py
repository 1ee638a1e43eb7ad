"""One forward and backward pass, and the groups of the optimizer, on a mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.golden.experiment import RecordedModuleCfg
from tests.golden.jobs import MESHES, ONE_PROCESS, Job
from tests.golden.record import Checksum, checksum, checksums, forward_batch, load
from tinyexp.accelerators.base import Accelerator
from tinyexp.examples.vit_tp_exp import LAYOUT
from tinyexp.models.vit.build import deit_small_patch16_224
from tinyexp.parallel.apply import Parameters
from tinyexp.training.optimizer import OptimizerCfg


@dataclass
class Passes:
    """What one rank found; images of its replica only."""

    replica: int
    logits: Tensor
    loss: float
    activations: dict[str, Checksum]  # outputs of modules
    gradients: dict[str, Checksum]  # of the mean loss over all images, by official name
    small_gradients: dict[str, Tensor]  # the tensors themselves, of a small model only
    gradient_norm: float


@dataclass(frozen=True)
class ForwardCase(Job):
    """A recorded model on a mesh. The replicas divide the recorded batch."""

    model: str
    dtype: str

    def run(self, folder: Path) -> Passes:
        accelerator = self.mesh.build(self.dtype)
        images, classes = (part.chunk(accelerator.replica.size)[accelerator.replica.rank] for part in forward_batch(self.model))
        activations = self._activations(accelerator, images)
        model = RecordedModuleCfg(recorded=self.model, drop_path_rate=0.0).build()
        accelerator.prepare(model)
        logits = accelerator.training_model(images.to(accelerator.dtype))
        loss = F.cross_entropy(logits, classes)
        accelerator.backward(loss)
        gradients = {name: value.grad for name, value in accelerator.parameters.by_name.items() if value.grad is not None}
        whole = LAYOUT.to_official(accelerator.whole_like_weights(gradients))
        return Passes(
            replica=accelerator.replica.rank,
            logits=logits.detach(),
            loss=loss.item(),
            activations=activations,
            gradients=checksums(whole),
            small_gradients=whole if self.model == "golden_small" else {},
            gradient_norm=accelerator.gradient_norm().item(),
        )

    @torch.no_grad()
    def _activations(self, accelerator: Accelerator, images: Tensor) -> dict[str, Checksum]:
        """The outputs of modules, the last block's for all tokens as the official one has them.

        The branches of tensor-parallel blocks put out partial sums, so there only what enters and leaves the blocks is whole.
        """
        model = RecordedModuleCfg(recorded=self.model, drop_path_rate=0.0, class_token_tail=False).build()
        accelerator.prepare(model)
        names = {name: name for name in self.recorded["activations"]}
        if accelerator.mesh.tp.size > 1:
            names = {"patch_embed": "patch_embed", "blocks": list(names)[-1]}
        found = _outputs(model, names)
        accelerator.training_model(images.to(accelerator.dtype))
        return found

    @property
    def recorded(self) -> dict[str, Any]:
        short = {"golden_small": "small", "deit_small_patch16_224": "deit_s"}[self.model]
        return load("forward")["cases"][f"{short}_{self.dtype}"]

    def __str__(self) -> str:
        return f"{self.mesh.name}-{self.model}-{self.dtype}"


@dataclass(frozen=True)
class GroupsCase(Job):
    """The optimizer's groups of DeiT-S on a mesh; the weights are never allocated."""

    def run(self, folder: Path) -> list[dict[str, Any]]:
        with torch.device("meta"):
            model = deit_small_patch16_224()
            if "ddp" not in self.mesh.name:  # DDP leaves the parameters as they are, and sends them, which needs memory
                self.mesh.build("f32").place(model)
        parameters = Parameters(model)
        optimizer = OptimizerCfg().build(model, global_batch=512)
        names = {id(parameter): name for name, parameter in parameters.by_name.items()}
        groups = []
        for group in optimizer.param_groups:
            own = [names[id(parameter)] for parameter in group["params"]]
            elements = sum(parameters.whole_shape(name).numel() for name in own)
            fused = list(LAYOUT.to_official({name: torch.empty(1) for name in own}))
            groups.append({**group, "params": len(own), "names": fused, "n_elements": elements})
        return groups

    def __str__(self) -> str:
        return self.mesh.name


def forward_cases(*, everything: bool) -> list[ForwardCase]:
    cases = [ForwardCase(mesh, "golden_small", dtype) for mesh in MESHES for dtype in ("f32", "f64")]
    if everything:
        return cases + [ForwardCase(mesh, "deit_small_patch16_224", dtype) for mesh in MESHES for dtype in ("f32", "f64")]
    return [*cases, ForwardCase(ONE_PROCESS, "deit_small_patch16_224", "f32")]


def groups_cases() -> list[GroupsCase]:
    return [GroupsCase(mesh) for mesh in MESHES]


def _outputs(model: nn.Module, names: Mapping[str, str]) -> dict[str, Checksum]:
    """Checksums of the outputs of modules, filled by the next forward: module -> name of the checksum."""
    found: dict[str, Checksum] = {}

    def note(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            found[name] = checksum(output)

        return hook

    for module, name in names.items():
        model.get_submodule(module).register_forward_hook(note(name))
    return found
