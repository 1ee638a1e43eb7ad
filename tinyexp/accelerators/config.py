"""Choose and build the accelerator of a run."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.accelerators.ddp import DDPAccelerator
from tinyexp.accelerators.device import take_device
from tinyexp.accelerators.process_group import open_process_group, pretended_process_group
from tinyexp.accelerators.tensor_parallel import TPAccelerator
from tinyexp.errors import ConfigError, MachineError
from tinyexp.limits import MOST, SECONDS, Range, nearest, range_problems
from tinyexp.parallel.check import plan_problems
from tinyexp.parallel.mesh import MeshShape, build_mesh, divisors, mesh_shape
from tinyexp.parallel.plan import PlanBuilder
from tinyexp.parallel.schedule import ACTIVATION_LAYOUTS
from tinyexp.process import Axis, Environment, host_name

RANGES = {
    "tp_size": Range(0, 100_000, "0 takes all processes"),
    "overlap_chunks": Range(1, MOST, "1 is off"),
    "timeout_s": SECONDS,
    "check_every": Range(0, MOST, "0 is off"),
}
ACCELERATORS = ("tp", "ddp", "cpu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "fp64")
DEVICES = ("auto", "cpu", "cuda")


@dataclass
class AcceleratorCfg:
    """How the processes share one model."""

    accelerator: str = "tp"  # tp: tensor parallel; ddp: data parallel by torch's DistributedDataParallel; cpu: one process
    tp_size: int = 0  # ranks that share one copy of the model; 0: all processes; dp = world / tp_size
    activations: str = "sharded"  # sharded: every rank reads its own images; replicated: a tp group reads the same ones
    overlap_chunks: int = 1  # chunks of the batch that hide each other's communication behind their work; 1: off
    precision: str = "auto"  # auto: fp16 autocast on CUDA as DeiT, fp32 on CPU; or fp32, bf16, fp16, fp64
    device: str = "auto"  # auto: CUDA where the machine has it, else cpu; or cpu, cuda
    tp_across_nodes: bool = False  # true: a tensor-parallel group may reach over several machines
    timeout_s: float = 300.0  # seconds a collective waits for a rank that does not come
    check_every: int = 100  # steps between two comparisons of what ranks must hold alike; 0: never

    def problems(self) -> list[str]:
        """Everything here that no run can have, each with its dotted key."""
        choices = {
            "accelerator": ACCELERATORS,
            "activations": tuple(ACTIVATION_LAYOUTS),
            "precision": PRECISIONS,
            "device": DEVICES,
        }
        found = []
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                found.append(f"accelerator_cfg.{name}={value!r}: allowed are {', '.join(allowed)}{nearest(value, allowed)}")
        return found + list(range_problems("accelerator_cfg.", self, RANGES))

    def mesh_shape(self, world_size: int) -> MeshShape:
        """The mesh of `world_size` processes. Raises: ConfigError where they do not form one."""
        if self.accelerator == "tp":
            return mesh_shape(world_size, self.tp_size)
        if self.accelerator == "cpu" and world_size > 1:
            raise ConfigError(
                f"accelerator_cfg.accelerator=cpu runs one process, this run has {world_size}; set "
                "ray_cfg.ray_num_worker=1, or accelerator_cfg.accelerator=tp or ddp, which run on CPUs too"
            )
        if self.tp_size > 1:
            raise ConfigError(
                f"accelerator_cfg.tp_size={self.tp_size} needs accelerator_cfg.accelerator=tp, got {self.accelerator}"
            )
        return MeshShape(dp=world_size, tp=1)

    def mesh_problems(self, world_size: int, model: nn.Module, build_plan: PlanBuilder, *, drop_rate: float) -> list[str]:
        """Why `world_size` processes cannot train the model together; it may be on the meta device."""
        try:
            shape = self.mesh_shape(world_size)
        except ConfigError as error:
            return [str(error)]
        if shape.tp == 1:
            if self.overlap_chunks == 1:
                return []
            return [
                f"accelerator_cfg.overlap_chunks={self.overlap_chunks} hides the exchanges of a tensor-parallel group, and this "
                f"run ({shape}) has none; set accelerator_cfg.overlap_chunks=1 or a larger accelerator_cfg.tp_size"
            ]
        found = plan_problems(model, build_plan(model, activations=self.activations, overlap_chunks=1), shape.tp)
        if drop_rate:
            found.append(
                f"module_cfg.drop_rate={drop_rate} needs accelerator_cfg.tp_size=1, this run has {shape.tp}: dropout inside a "
                "shard draws other masks than one process; DeiT trains with 0 and with module_cfg.drop_path_rate"
            )
        return found

    def num_replicas(self, shape: MeshShape) -> int:
        """Processes or groups that read images of their own."""
        return shape.dp if self.accelerator == "tp" and self.activations == "replicated" else shape.world

    def effective_precision(self, device_type: str) -> str:
        """What the run computes in: DeiT's fp16 autocast on CUDA and fp32 on the CPU, unless the user chose."""
        return self.precision if self.precision != "auto" else "fp16" if device_type == "cuda" else "fp32"

    def label(self, shape: MeshShape) -> str:
        """Accelerator, mesh and, where a group shares a model, its layout: "tp dp=1 tp=2 sharded"."""
        return f"{self.accelerator} {shape}" + (f" {self.activations}" if shape.tp > 1 else "")

    def ranks_on_one_node(self) -> int:
        """How many consecutive ranks a launcher must not spread over nodes; 0: all ranks of the run."""
        return self.tp_size if self.accelerator == "tp" and not self.tp_across_nodes else 1

    def build(self, environment: Environment, build_plan: PlanBuilder) -> Accelerator:
        """Join the process group and build this rank's accelerator. Every rank must call it."""
        self._check_nodes(environment)
        device = take_device(environment, asked="cpu" if self.accelerator == "cpu" else self.device)
        open_process_group(environment, device, self.timeout_s)
        accelerator = self._build(environment.world, device, device.type, build_plan)
        accelerator.timeout_s = self.timeout_s
        return accelerator

    @contextlib.contextmanager
    def pretended(self, world_size: int, device_type: str, build_plan: PlanBuilder) -> Iterator[Accelerator]:
        """Rank 0 of a mesh of `world_size` processes that do not exist, its tensors on the meta device: to ask, not to train."""
        with pretended_process_group(world_size):
            yield self._build(Axis(0, world_size), torch.device("meta"), device_type, build_plan)

    def _build(self, world: Axis, device: torch.device, device_type: str, build_plan: PlanBuilder) -> Accelerator:
        precision = self.effective_precision(device_type)
        mesh = build_mesh(
            world, self.mesh_shape(world.size).tp, "cpu" if device.type == "meta" else device.type, timeout_s=self.timeout_s
        )
        match self.accelerator:
            case "cpu":
                return CPUAccelerator(device=device, precision=precision)
            case "ddp":
                return DDPAccelerator(world=world, mesh=mesh, device=device, precision=precision)
            case _:
                return TPAccelerator(
                    world=world,
                    mesh=mesh,
                    device=device,
                    precision=precision,
                    activations=self.activations,
                    overlap_chunks=self.overlap_chunks,
                    build_plan=build_plan,
                    on_gloo=device_type == "cpu",
                )

    def _check_nodes(self, environment: Environment) -> None:
        world, ranks_here = environment.world, environment.local.size
        tp = self.mesh_shape(world.size).tp
        if not self.tp_across_nodes and not environment.holds_group(tp):
            fitting = ", ".join(map(str, divisors(ranks_here)))
            raise MachineError(
                f"accelerator_cfg.tp_size={self.tp_size}: the {tp} ranks of a tensor-parallel group would be spread over nodes; "
                f"node {host_name()} has {ranks_here} of the {world.size} ranks. Use accelerator_cfg.tp_size={fitting}, "
                "other numbers of ranks, or accelerator_cfg.tp_across_nodes=true where their network is fast enough"
            )
