from tinyexp.launch.ray_ranks import environments
from tinyexp.process import Axis, Environment


def test_local_ranks_count_the_ranks_of_each_node():
    found = environments(["a", "a", "a", "b"], "10.0.0.1", 4000, 0)
    assert [environment.world for environment in found] == [Axis(rank, 4) for rank in range(4)]
    assert [environment.local for environment in found] == [Axis(0, 3), Axis(1, 3), Axis(2, 3), Axis(0, 1)]


def test_every_rank_finds_the_same_hosted_store_and_owns_the_devices_that_ray_shows_it():
    (found,) = environments(["a"], "10.0.0.1", 4000, 2)
    assert found == Environment(Axis(), Axis(), "10.0.0.1", 4000, store_is_hosted=True, attempt=2, owns_devices=True)
