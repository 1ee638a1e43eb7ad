import pytest

from tinyexp.errors import ConfigError
from tinyexp.parallel.mesh import MeshShape, build_mesh, divisors, mesh_shape
from tinyexp.process import Axis


def test_tp_takes_all_processes_unless_told_otherwise():
    assert mesh_shape(4, 0) == MeshShape(dp=1, tp=4)
    assert mesh_shape(4, 2) == MeshShape(dp=2, tp=2)
    assert mesh_shape(4, 1) == MeshShape(dp=4, tp=1)


@pytest.mark.parametrize("tp_size", [3, 8, -2])
def test_a_mesh_that_is_not_the_number_of_processes_is_refused_with_the_numbers(tp_size):
    with pytest.raises(ConfigError, match=rf"tp_size={tp_size} does not divide the 4 processes.*use one of 1, 2, 4"):
        mesh_shape(4, tp_size)


def test_one_process_needs_no_process_group():
    mesh = build_mesh(Axis(), 0, "cpu", timeout_s=60.0)
    assert mesh.shape == MeshShape(1, 1)
    assert mesh.device_mesh is None


def test_divisors_ascend():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
