"""A node of a cluster is lost while the run has a rank there."""

import json

import pytest

from tests.launch.conftest import ray_cluster, still_alive
from tests.launch.jobs import MAX_RESTARTS

LOST = "died without a report (killed, possibly out of memory, or its node was lost)"


@pytest.mark.ray
def test_a_run_goes_on_without_a_lost_node_where_there_is_a_spare(start, pids):
    """Three nodes of one CPU, two ranks. Ray itself notices the loss some 10 s later than the driver."""
    settings = json.dumps({"ray_num_worker": 2, "ray_num_gpus_per_worker": 0.0})
    with ray_cluster(num_nodes=3) as cluster:
        command = start("ray", "lose_node_of_rank_1_at_first", settings, **cluster, **{MAX_RESTARTS: "1"})
        output, errors = command.communicate(timeout=180)
        assert (command.returncode, output.splitlines()[-2:]) == (0, ["3.0", "3.0"]), errors
        assert f"{LOST}; restart 1 of 1, from the newest checkpoint if there is one" in errors
        assert still_alive(pids) == []
