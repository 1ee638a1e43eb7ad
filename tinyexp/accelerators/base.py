"""The processes of a run as one machine: where the model lies, and how a step becomes the step of the whole mesh."""

import contextlib
import datetime
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.utils import clip_grads_with_norm_

from tinyexp.accelerators.grad_scaler import build_grad_scaler
from tinyexp.accelerators.gradients import total_norm
from tinyexp.accelerators.process_group import close_process_group
from tinyexp.parallel.apply import Parameters, assert_owns
from tinyexp.parallel.mesh import Mesh
from tinyexp.parallel.report import Traffic
from tinyexp.parallel.waiting import WAITING
from tinyexp.process import Axis

T = TypeVar("T")
AUTOCAST_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Accelerator(ABC):
    """One rank's view of the mesh. Every rank must call every method that says so, in the same order."""

    timeout_s = 300.0  # a collective waits so long for a rank that does not come

    def __init__(self, *, world: Axis, mesh: Mesh, device: torch.device, precision: str) -> None:
        self.world = world
        self.mesh = mesh
        self.device = device
        self.precision = precision
        self.scaler = build_grad_scaler(device, fp16=precision == "fp16")

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.world.rank == 0

    @property
    @abstractmethod
    def replica(self) -> Axis:
        """This rank among the replicas, the processes or groups that read images of their own."""

    @property
    @abstractmethod
    def replica_group(self) -> ProcessGroup | None:
        """The ranks that hold one member of every replica; None where this replica is the only one."""

    @property
    def readers(self) -> Axis:
        """This rank among those of its replica, which read the replica's images together."""
        return Axis()

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of each reader of this replica, on the device, as (readers * n, ...). Every rank must call it."""
        return rows

    @property
    def waited_s(self) -> float | None:
        """Seconds that this process has waited for the exchanges of its steps so far; None where nobody can tell."""
        return None

    @abstractmethod
    def place(self, model: nn.Module) -> nn.Module:
        """Shard or wrap a model that lies on the device and is the same on every rank; returns what training calls."""

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Make the local gradients those of the mean loss over all replicas. Every rank must call it."""

    def traffic(self, residual_stream: tuple[int, int, int]) -> list[Traffic]:
        """What this rank sends in one forward, backward and reduction, by plan.

        `residual_stream` is (images of a forward on this rank, tokens, dim).
        """
        return []

    def prepare(self, model: nn.Module) -> nn.Module:
        """Take over a freshly built model: to the device, rank 0's weights everywhere, sharded. Every rank must call it.

        Returns: the module to call in training. `self.model` is the model itself, `self.parameters` what an optimizer owns.
        """
        self.model = model.to(self.device)
        if self.precision == "fp64":
            self.model.double()
        if self.world.size > 1:
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                dist.broadcast(tensor.data, src=0)
        self.training_model = self.place(self.model)
        self.parameters = Parameters(self.model)
        return self.training_model

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of matrix products, and of the activations that ranks exchange."""
        return AUTOCAST_DTYPES.get(self.precision, self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, and so of the images that the model takes; autocast computes in a narrower one."""
        return next(self.model.parameters()).dtype

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The mixed precision of the run; nothing where it is fp32 or fp64."""
        dtype = AUTOCAST_DTYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype) if dtype else contextlib.nullcontext()

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer, *, clip_grad: float | None = None) -> Tensor | None:
        """Backward, reduce, clip and one update, the same on every rank; gradients are cleared. Every rank must call it.

        `loss` is the mean over this replica's images. With fp16 an overflow on any rank skips the update on all of them.
        Returns: the gradient's norm before clipping where `clip_grad` is set.
        """
        self.backward(loss)
        return self.update(optimizer, clip_grad=clip_grad)

    def backward(self, loss: Tensor) -> None:
        """Leave on every local parameter the (scaled) gradient of the mean loss over all replicas."""
        self.scaler.scale(loss).backward()
        self.reduce_gradients()

    def update(self, optimizer: torch.optim.Optimizer, *, clip_grad: float | None = None) -> Tensor | None:
        """What `step` does after backward."""
        norm = None
        if clip_grad:
            self.scaler.unscale_(optimizer)
            norm = self.gradient_norm()
            clip_grads_with_norm_(self.parameters.by_name.values(), clip_grad, norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        self.parameters.clear_gradients()
        return norm

    def gradient_norm(self) -> Tensor:
        """The norm of the whole averaged gradient, the same on every rank. Every rank must call it."""
        sharded, replicated = (self.parameters.of_kind(sharded=kind) for kind in (True, False))
        return total_norm(sharded, replicated, self.mesh.group("tp") if sharded else None)

    def owns(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer itself, checked to update this rank's weights."""
        assert_owns(optimizer, self.model)
        return optimizer

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over replicas, each counted once, on the device the values came from. Every rank must call it.

        CPU tensors travel through the accelerator's device, because nccl cannot reduce them.
        """
        if self.replica_group is None:
            return values
        staged = values.to(self.device, copy=True)
        dist.all_reduce(staged, group=self.replica_group)
        return staged.to(values.device)

    def largest(self, values: Sequence[int]) -> list[int]:
        """Of each value, below 2**53, the largest over all ranks. Every rank must call it."""
        return [int(max(each)) for each in zip(*self.gather_numbers(values), strict=True)]

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, in rank order, by one all-gather between the hosts' CPUs. Every rank must call it.

        They travel as float64, so that whole numbers below 2**53 arrive as they are.
        """
        mine = torch.tensor(numbers, dtype=torch.float64)
        if self.world.size == 1:
            return [mine.tolist()]
        everyone = mine.new_empty(self.world.size * len(mine))
        with WAITING:
            dist.all_gather_single(everyone, mine, group=self._host_group)
        return everyone.view(self.world.size, -1).tolist()

    def exchange(self, value: T) -> list[T]:
        """The values that the ranks give, in rank order, exchanged between the hosts' CPUs. Every rank must call it."""
        values = [value] * self.world.size
        if self.world.size > 1:
            dist.all_gather_object(values, value, group=self._host_group)
        return values

    def open_host_group(self) -> ProcessGroup | None:
        """A group of all ranks over gloo, for a thread that talks beside the training. Every rank must call it."""
        if self.world.size == 1:
            return None
        group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=self.timeout_s))
        assert isinstance(group, ProcessGroup), "this rank is a member"
        return group

    @functools.cached_property
    def _host_group(self) -> ProcessGroup | None:
        """For small things between CPUs. None: on the CPU the group of all ranks serves."""
        return self.open_host_group() if self.device.type == "cuda" else None

    def nonfinite_gradients(self) -> list[str]:
        """The parameters whose averaged gradient on this rank has no finite norm: a NaN, an infinity, or too large to square.

        With fp16 there are none: the scaler judges overflows itself, and skips the step.
        """
        if self.scaler.is_enabled():
            return []
        gradients = {name: each.grad for name, each in self.parameters.by_name.items() if each.grad is not None}
        finite = torch.stack(torch._foreach_norm(list(gradients.values()), 2)).isfinite().tolist()
        return [name for name, is_finite in zip(gradients, finite, strict=True) if not is_finite]

    def whole_weights(self) -> dict[str, Tensor]:
        """A copy of the model's whole state on the CPU of every rank. Every rank must call it."""
        return self.whole_like_weights(self.model.state_dict())

    def whole_like_weights(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole CPU copies of local tensors that are cut as the parameters of their names are. Every rank must call it."""
        return {name: self.parameters.gather(name, part).to("cpu", copy=True) for name, part in parts.items()}

    def barrier(self) -> None:
        if self.world.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the process group. Every rank must call it, last."""
        close_process_group()
