"""The processes of a run as a (dp, tp) mesh: world = dp * tp, the ranks of a tp group neighbours."""

import datetime
from dataclasses import dataclass

from torch.distributed import DeviceMesh, ProcessGroup, new_subgroups_by_enumeration

from tinyexp.errors import ConfigError
from tinyexp.process import Axis


@dataclass(frozen=True)
class MeshShape:
    """Sizes of the two axes."""

    dp: int
    tp: int

    @property
    def world(self) -> int:
        return self.dp * self.tp

    def __str__(self) -> str:
        return f"dp={self.dp} tp={self.tp}"


@dataclass(frozen=True)
class Mesh:
    """This process's place on both axes, and the process groups to talk along them. One process needs no groups."""

    dp: Axis
    tp: Axis
    device_mesh: DeviceMesh | None = None

    @property
    def shape(self) -> MeshShape:
        return MeshShape(self.dp.size, self.tp.size)

    def group(self, axis: str) -> ProcessGroup:
        """The process group of this rank along "dp" or "tp"."""
        assert self.device_mesh is not None, "one process has no process groups"
        return self.device_mesh.get_group(axis)


def mesh_shape(world: int, tp_size: int) -> MeshShape:
    """The mesh that `world` processes form with `tp_size` ranks in each tensor-parallel group; 0 takes all of them.

    Raises: ConfigError with the three numbers where tp_size does not divide world.
    """
    tp = tp_size or world
    if tp < 1 or world % tp:
        fitting = ", ".join(str(size) for size in divisors(world))
        raise ConfigError(
            f"accelerator_cfg.tp_size={tp_size} does not divide the {world} processes of this run "
            f"({world} / {tp_size} = {world / tp_size:g} groups); use one of {fitting}, or another number of processes"
        )
    return MeshShape(dp=world // tp, tp=tp)


def build_mesh(world: Axis, tp_size: int, device_type: str, *, timeout_s: float) -> Mesh:
    """Every rank must call it, after the process group is up. Consecutive ranks share a tp group.

    timeout_s: what a collective along either axis waits for a rank; `init_device_mesh` would make it torch's half an hour.
    """
    shape = mesh_shape(world.size, tp_size)
    device_mesh = None
    if world.size > 1:
        timeout = datetime.timedelta(seconds=timeout_s)
        along_tp = [list(range(first, first + shape.tp)) for first in range(0, world.size, shape.tp)]
        along_dp = [list(each) for each in zip(*along_tp, strict=True)]
        groups = [_own_group(each, timeout) for each in (along_dp, along_tp)]
        device_mesh = DeviceMesh.from_group(groups, device_type, mesh=along_tp, mesh_dim_names=("dp", "tp"))
    return Mesh(
        dp=Axis(world.rank // shape.tp, shape.dp),
        tp=Axis(world.rank % shape.tp, shape.tp),
        device_mesh=device_mesh,
    )


def _own_group(groups: list[list[int]], timeout: datetime.timedelta) -> ProcessGroup:
    group, _ = new_subgroups_by_enumeration(groups, timeout=timeout)
    assert isinstance(group, ProcessGroup), "every rank is in one of them"
    return group


def divisors(number: int) -> list[int]:
    """All sizes that divide a number, ascending."""
    return [size for size in range(1, number + 1) if number % size == 0]
