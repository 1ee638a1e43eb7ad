"""Data parallelism: every rank holds the whole model and reads images of its own."""

from typing import final

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from tinyexp.accelerators.base import Accelerator
from tinyexp.parallel.report import Traffic, gradient_traffic
from tinyexp.process import Axis


@final
class DDPAccelerator(Accelerator):
    """torch's DistributedDataParallel, which averages gradients while backward still runs."""

    @property
    def replica(self) -> Axis:
        return self.world

    @property
    def replica_group(self) -> ProcessGroup | None:
        return dist.group.WORLD if self.world.size > 1 else None

    def place(self, model: nn.Module) -> nn.Module:
        if self.world.size == 1 or self.device.type == "meta":
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def traffic(self, residual_stream: tuple[int, int, int]) -> list[Traffic]:
        """The gradients, in the buckets that torch formed; it forms them anew in the second step, and before the first there
        is one."""
        if not isinstance(self.training_model, DistributedDataParallel):
            return gradient_traffic([sum(each.nbytes for each in self.parameters.by_name.values())], self.world.size)
        formed = self.training_model._get_ddp_logging_data()
        sizes = formed.get("rebuilt_bucket_sizes") or formed["bucket_sizes"]
        return gradient_traffic([int(size) for size in sizes.split(",")], self.world.size)

    def reduce_gradients(self) -> None:
        pass  # done inside backward
