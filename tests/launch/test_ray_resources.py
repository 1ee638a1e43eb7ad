import pytest

from tinyexp.errors import MachineError
from tinyexp.launch.ray_resources import Bundle, NodeGroup, amounts, cluster_capacity


@pytest.mark.parametrize(
    ("bundle", "cpus", "gpus", "fitting"),
    [
        (Bundle(12, 1.0), None, 8, 8),
        (Bundle(12, 1.0), 48, 8, 4),
        (Bundle(1, 2.0), None, 5, 2),
        (Bundle(1, 0.5), None, 2, 4),
        (Bundle(1, 0.6), None, 2, 2),
        (Bundle(1, 0.1), None, 1, 10),
        (Bundle(4), 10, 0, 2),
        (Bundle(1, 1.0), 64, 0, 0),
    ],
)
def test_a_machine_holds_as_many_workers_as_its_scarcest_resource_allows(bundle, cpus, gpus, fitting):
    assert bundle.fit(cpus=cpus, gpus=gpus) == fitting


def test_a_request_is_told_with_its_total():
    assert Bundle(12, 0.5).times(4) == "4 workers x (12 CPUs + 0.5 GPUs) = 48 CPUs, 2 GPUs"
    assert Bundle(2).times(8) == "8 workers x (2 CPUs) = 16 CPUs, 0 GPUs"


def test_a_resource_that_a_cluster_lacks_is_0():
    assert amounts({"CPU": 2.0, "memory": 1e9}) == "2 CPUs, 0 GPUs"


@pytest.mark.parametrize(
    ("bundle", "num_workers", "cpus", "gpus"),
    [(Bundle(12, 1.0), 2, 24, 2), (Bundle(1, 0.5), 2, 2, 1.0), (Bundle(1, 0.5), 3, 3, 2), (Bundle(1, 0.6), 3, 3, 3)],
)
def test_workers_that_share_a_node_ask_for_whole_gpus(bundle, num_workers, cpus, gpus):
    assert bundle.resources(num_workers) == {"CPU": cpus, "GPU": gpus}
    assert Bundle(2).resources(3) == {"CPU": 6}


def test_a_cluster_is_filled_with_whole_groups(monkeypatch):
    import ray

    nodes = [{"Alive": alive, "Resources": {"CPU": cpus}} for alive, cpus in ((True, 5.0), (True, 3.0), (False, 8.0))]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert cluster_capacity(Bundle(1), NodeGroup(1)) == 8
    assert cluster_capacity(Bundle(1), NodeGroup(2)) == 6
    assert cluster_capacity(Bundle(1), NodeGroup(4)) == 4
    with pytest.raises(MachineError, match=r"set ray_cfg\.ray_num_worker=5 or less, or a key"):
        cluster_capacity(Bundle(1), NodeGroup(0, "a key"))
