"""The processes of a run as a (dp, tp) mesh: world = dp * tp, the ranks of a tp group neighbours."""

from dataclasses import dataclass

from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.device_mesh import init_device_mesh

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


def build_mesh(world: Axis, tp_size: int, device_type: str) -> Mesh:
    """Every rank must call it, after the process group is up. Consecutive ranks share a tp group."""
    shape = mesh_shape(world.size, tp_size)
    device_mesh = None
    if world.size > 1:
        device_mesh = init_device_mesh(device_type, (shape.dp, shape.tp), mesh_dim_names=("dp", "tp"))
    return Mesh(
        dp=Axis(world.rank // shape.tp, shape.dp),
        tp=Axis(world.rank % shape.tp, shape.tp),
        device_mesh=device_mesh,
    )


def divisors(number: int) -> list[int]:
    """All sizes that divide a number, ascending."""
    return [size for size in range(1, number + 1) if number % size == 0]
