"""The smallest complete experiment: a two-layer MLP, sharded by PyTorch's own tensor parallelism and compared with one process.

    python -m tinyexp.examples.mlp_tp_exp                           two processes, started by Ray
    python -m tinyexp.examples.mlp_tp_exp launcher=local            started by this command
    torchrun --standalone --nproc-per-node 2 -m tinyexp.examples.mlp_tp_exp

or once a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand. docs/tensor_parallel.md explains each step.
"""

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tinyexp.accelerators.device import take_device
from tinyexp.accelerators.process_group import close_process_group, open_process_group
from tinyexp.errors import NotEqual
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.entry import store_and_run_exp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.plan import Plan
from tinyexp.parallel.report import TrafficCounter
from tinyexp.process import Environment

ROUNDING = 1e-6  # of float32 weights below 0.1 whose gradients were summed in another order


class SimpleMLP(nn.Module):
    """Two Linears of hidden_size features with a ReLU between."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(inputs)))


def build_plan() -> Plan:
    """Column-wise, then row-wise: the features between the two stay on their rank."""
    return {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}


@dataclass
class MlpTpExp(TinyExp):
    """A two-layer MLP trained a few steps under tensor parallelism, beside the same steps of one process."""

    launcher: str = "ray"  # ray: Ray starts the processes; local: this command does; mp: it is one rank of torchrun or by hand
    hidden_size: int = 1024  # features of both layers; the number of ranks must divide it
    batch_size: int = 32  # rows of the one batch, the same on every rank
    steps: int = 3  # optimizer steps
    lr: float = 10.0  # of plain SGD; large, because the loss is a mean over rows and features
    timeout_s: float = 300.0  # seconds to wait for a rank that does not come
    ray_cfg: RayCfg = field(default_factory=lambda: RayCfg(ray_num_worker=2, ray_num_gpus_per_worker=0.0))

    @property
    def owns_run_folder(self) -> bool:
        return False  # nothing is written

    def problems(self) -> list[str]:
        """What cannot work, found on a model without memory."""
        sizes = {name: getattr(self, name) for name in ("hidden_size", "batch_size", "steps", "timeout_s")}
        found = super().problems() + [f"{name}={size}: above 0 is needed" for name, size in sizes.items() if size <= 0]
        if (num_processes := self.num_processes()) == 1:
            found.append("one process has nothing to share; set ray_cfg.ray_num_worker=2, or start it with torchrun")
        if self.hidden_size > 0:
            with torch.device("meta"):
                found += plan_problems(SimpleMLP(self.hidden_size), build_plan(), num_processes or 1)
        return found

    def run(self) -> list[str]:
        """Join the others, train, compare. Returns the lines to show. Raises: NotEqual."""
        environment = Environment.read()
        device = take_device(environment, asked="auto" if self.ray_cfg.ray_num_gpus_per_worker else "cpu")
        open_process_group(environment, device, self.timeout_s)
        mesh = init_device_mesh(device.type, (environment.world.size,), mesh_dim_names=("tp",))
        lines = self.train(mesh, device)
        close_process_group()
        return lines

    def train(self, mesh: DeviceMesh, device: torch.device) -> list[str]:
        """Shard first and build the optimizer second: sharding makes new parameters, and an optimizer keeps those it got."""
        torch.manual_seed(self.seed)
        whole = SimpleMLP(self.hidden_size).to(device)
        model = parallelize_module(copy.deepcopy(whole), mesh, dict(build_plan()))
        lines = [f"{mesh.size()} ranks, {device.type}; rank 0 holds"]
        for name, weight in sharded(model).items():
            shapes = f"{tuple(weight.to_local().shape)} of {tuple(weight.shape)}"
            lines.append(f"  {name:10}  {weight.placements[0]!r:12}  {shapes}")
        inputs, targets = torch.randn(2, self.batch_size, self.hidden_size).to(device)
        optimizers = [torch.optim.SGD(each.parameters(), lr=self.lr) for each in (model, whole)]
        for step in range(self.steps):
            with TrafficCounter() as counter:
                loss = train_step(model, optimizers[0], inputs, targets)
            want = train_step(whole, optimizers[1], inputs, targets)
            sent = ", ".join(f"{line.calls} {line.kind} ({line.sent_bytes:,} bytes sent)" for line in counter.traffic)
            lines.append(f"step {step}: loss {loss:.6f}, one process {want:.6f}; {sent}")
        return lines + compare(model, whole)

    def report(self, result: list[str]) -> None:
        print("\n".join(result), flush=True)


def sharded(model: nn.Module) -> dict[str, DTensor]:
    """The parameters by name; with a style for every layer each of them knows how it lies on the mesh."""
    return {name: weight for name, weight in model.named_parameters() if isinstance(weight, DTensor)}


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """The loss before the step."""
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def compare(model: nn.Module, whole: nn.Module) -> list[str]:
    """How far the sharded weights are from whole ones, seen from both sides. Every rank must call it. Raises: NotEqual."""
    gathered = scattered = 0.0
    for name, weight in sharded(model).items():
        want = whole.get_parameter(name).detach()
        part = distribute_tensor(want, weight.device_mesh, weight.placements)
        gathered = max(gathered, (weight.full_tensor() - want).abs().max().item())
        scattered = max(scattered, (weight.to_local() - part.to_local()).abs().max().item())
    if max(gathered, scattered) > ROUNDING:
        raise NotEqual(f"the weights are {max(gathered, scattered):.0e} from those of one process, allowed is {ROUNDING:g}")
    return [
        f"gather: the shards as whole weights are those of one process within {gathered:.0e}",
        f"scatter: the weights of one process as shards are the model's within {scattered:.0e}",
    ]


if __name__ == "__main__":
    store_and_run_exp(MlpTpExp)
