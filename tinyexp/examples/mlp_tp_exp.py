"""The smallest complete experiment: a two-layer MLP, sharded by PyTorch's own tensor parallelism and compared with one process.

python -m tinyexp.examples.mlp_tp_exp                           two processes, started by Ray
python -m tinyexp.examples.mlp_tp_exp launcher=local            started by this command
torchrun --standalone --nproc-per-node 2 -m tinyexp.examples.mlp_tp_exp
RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m tinyexp.examples.mlp_tp_exp      once for each RANK
"""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from tinyexp.accelerators.device import take_device
from tinyexp.accelerators.process_group import close_process_group, open_process_group
from tinyexp.errors import NonFiniteLoss, NotEqual
from tinyexp.experiment.base import TinyExp
from tinyexp.experiment.entry import store_and_run_exp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.limits import SECONDS, Range, range_problems
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.report import TrafficCounter
from tinyexp.process import Environment

ROUNDING = 1e4 * torch.finfo(torch.float64).eps  # that a step may add, sums being in another order; the worst that diverge add 40
RANGES = dict.fromkeys(("hidden_size", "batch_size", "steps"), Range(1, 65_536)) | {"lr": Range(0, 100.0), "timeout_s": SECONDS}


def build_model(hidden_size: int) -> nn.Sequential:
    """Two Linears with a ReLU between, in float64: in float32 rounding now and then moves a sum across the 0 of the ReLU."""
    model = nn.Sequential()
    model.fc1, model.relu, model.fc2 = nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size)
    return model.double()


def build_plan() -> dict[str, ParallelStyle]:
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
    owns_run_folder = property(lambda self: False)  # pyright: ignore[reportIncompatibleMethodOverride] nothing is written

    def problems(self) -> list[str]:
        """What cannot work, found on a model without memory."""
        if found := super().problems() + list(range_problems("", self, RANGES)):
            return found
        if (num_processes := self.num_processes()) == 1:
            return ["one process has nothing to share; set ray_cfg.ray_num_worker=2, or start it with torchrun"]
        with torch.device("meta"):
            return plan_problems(build_model(self.hidden_size), build_plan(), num_processes or 1)

    def run(self) -> list[str]:
        """Join, shard, build the optimizer on the new parameters, train, compare. Returns lines to show. Raises: NotEqual."""
        environment = Environment.read()
        device = take_device(environment, asked="auto" if self.ray_cfg.ray_num_gpus_per_worker else "cpu")
        open_process_group(environment, device, self.timeout_s)
        mesh = init_device_mesh(device.type, (environment.world.size,), mesh_dim_names=("tp",))
        torch.manual_seed(self.seed)
        whole = build_model(self.hidden_size).to(device)
        model = parallelize_module(copy.deepcopy(whole), mesh, build_plan())
        weights: dict[str, DTensor] = {name: weight for name, weight in model.named_parameters() if isinstance(weight, DTensor)}
        lines = [f"{mesh.size()} ranks, {device.type}; rank 0 holds"]
        for name, weight in weights.items():
            lines.append(f"  {name:10}  {weight.placements[0]!r:12}  {(*weight.to_local().shape,)} of {(*weight.shape,)}")
        inputs, targets = torch.randn(2, self.batch_size, self.hidden_size).double().to(device)
        trained = [(each, torch.optim.SGD(each.parameters(), lr=self.lr)) for each in (model, whole)]  # after sharding
        for step in range(self.steps):
            with TrafficCounter() as counter:  # of both, and the one process sends nothing
                loss, want = (train_step(*each, inputs, targets) for each in trained)
            sent = ", ".join(f"{line.calls} {line.kind} ({line.sent_bytes:,} bytes sent)" for line in counter.traffic)
            lines.append(f"step {step}: loss {loss:.6g}, one process {want:.6g}; {sent}")
        lines += compare(weights, whole, self.steps)
        close_process_group()
        return lines

    def report(self, result: list[str]) -> None:
        print("\n".join(result), flush=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """The loss before the step."""
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def compare(weights: dict[str, DTensor], whole: nn.Module, steps: int) -> list[str]:
    """How far the sharded weights are from whole ones, seen from both sides. All ranks call it. Raises: TinyExpError."""
    pairs = [(weight, whole.get_parameter(name).detach()) for name, weight in weights.items()]
    largest = torch.cat([want.abs().flatten() for _, want in pairs]).max().item()
    if not largest < torch.inf:  # nor is a NaN
        raise NonFiniteLoss(f"training diverges: after {steps} steps the weights of one process are not finite; set a smaller lr")
    gathered = [weight.full_tensor() - want for weight, want in pairs]
    scattered = [each.to_local() - distribute_tensor(want, each.device_mesh, each.placements).to_local() for each, want in pairs]
    far, apart = (torch.cat([part.abs().flatten() for part in each]).max().item() / largest for each in (gathered, scattered))
    if not (far <= steps * ROUNDING and apart <= steps * ROUNDING):
        raise NotEqual(f"weights are {max(far, apart):.0e} of the largest from one process, allowed is {steps * ROUNDING:.0e}")
    gather_line = f"gather: the shards as whole weights are those of one process within {far:.0e} of the largest"
    return [gather_line, f"scatter: the weights of one process as shards are the model's within {apart:.0e} of the largest"]


if __name__ == "__main__":
    store_and_run_exp(MlpTpExp)
