"""Runs over two machines, made of network namespaces: equal to one process, each tensor-parallel group on one of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.hosts import Host, missing, two_hosts

pytestmark = pytest.mark.netns

BIN = Path(sys.executable).parent
# the smallest run that has every part: mixing, drop-path, clipping, average of the weights
VERIFY = """mode=verify accelerator_cfg.device=cpu module_cfg.img_size=32 dataloader_cfg.input_size=32 module_cfg.patch_size=8
 module_cfg.num_classes=10 module_cfg.embed_dim=32 module_cfg.num_heads=2 module_cfg.depth=1""".split()  # noqa: SIM905


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if reason := missing():
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


def torchrun(hosts: tuple[Host, Host], folder: Path, ranks_per_node: int, *command: str) -> list[tuple[int, str, str]]:
    """Status, output and errors of the command on each host."""
    started = []
    for index, host in enumerate(hosts):
        settings = ["--nnodes=2", f"--nproc-per-node={ranks_per_node}", f"--node-rank={index}", "--rdzv-backend=static"]
        address = [f"--master-addr={hosts[0].address}", "--master-port=29500"]
        started.append(host.start([str(BIN / "torchrun"), *settings, *address, "-m", *command], folder=folder))
    texts = [process.communicate(timeout=180) for process in started]
    return [(process.returncode, *text) for process, text in zip(started, texts, strict=True)]


@pytest.mark.parametrize(("ranks_per_node", "tp_size"), [(1, 1), (2, 2)], ids=["dp2_tp1", "dp2_tp2"])
def test_ranks_of_torchrun_on_two_machines_equal_one_process(hosts, tmp_path, ranks_per_node, tp_size):
    command = ("tinyexp.examples.vit_tp_exp", *VERIFY, f"accelerator_cfg.tp_size={tp_size}")
    first, second = torchrun(hosts, tmp_path, ranks_per_node, *command)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert f"{8 if tp_size > 1 else 0} counted" in first[1]  # collectives of the one block
