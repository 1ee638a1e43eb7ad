import pytest

from tinyexp.errors import MachineError
from tinyexp.launch.ray_cluster import cluster_address, joined_cluster


@pytest.mark.parametrize(
    ("value", "address"), [("", None), ("local", None), ("auto", "auto"), ("10.0.0.1:6379", "10.0.0.1:6379")]
)
def test_ray_address_tells_whether_to_join_a_cluster(monkeypatch, value, address):
    monkeypatch.setenv("RAY_ADDRESS", value)
    assert cluster_address() == address


def test_the_ray_client_is_refused_with_what_to_set_instead(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(MachineError, match="RAY_ADDRESS=auto"):
        cluster_address()


def test_an_address_where_nothing_answers_is_refused_at_once():
    with pytest.raises(MachineError, match=r"nothing answers at RAY_ADDRESS=127.0.0.1:1"), joined_cluster("127.0.0.1:1"):
        pass
