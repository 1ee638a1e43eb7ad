"""The cache under every launcher, by the commands that a user types, and what is left of it afterwards."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.data_room.test_decoding import UNREADABLE
from tests.helpers.hosts import missing, two_hosts
from tests.helpers.redis_servers import needs_redis
from tests.launch.conftest import is_alive
from tests.launch.test_nodes import start_torchrun
from tests.redis_cache.test_server import assert_gone
from tinyexp.redis_cache.guard import FOLDER_PREFIX

pytestmark = [pytest.mark.redis, needs_redis]

ROOT = Path(__file__).parents[2]
RUN = ["-m", "tinyexp.examples.vit_tp_exp"]
TWO_RANKS = ["accelerator_cfg.accelerator=ddp", "ray_cfg.ray_num_worker=2"]
CACHE = ["redis_cfg.redis_cache_enabled=true", "redis_cfg.redis_cache_max_memory=300"]  # as the full recipe has it
TINY = [
    "dataloader_cfg.input_size=40",
    "dataloader_cfg.train_batch_size_per_device=8",
    "dataloader_cfg.val_batch_size_per_device=8",
    "dataloader_cfg.num_workers=1",
    "dataloader_cfg.repeated_aug=false",
    "module_cfg.model_name=deit_digits_patch8_32",
    "module_cfg.img_size=40",
    "module_cfg.num_classes=4",
    "module_cfg.depth=1",
    "ema_cfg.model_ema=false",
    "ray_cfg.ray_num_gpus_per_worker=0.0",
    "ray_cfg.ray_num_cpus_per_worker=1",
    "output_root=output",
]


def start(folder: Path, program: list[str], data: Path, *keys: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *TINY, f"dataloader_cfg.data_root={data}", *keys],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=300)
    finally:
        process.kill()


def folder_of(said: str) -> Path:
    found = re.search(rf"at sockets in (\S*{FOLDER_PREFIX}\S+)", said)
    assert found, said
    return Path(found[1])


PROGRAMS = {
    "ray": (RUN, ["launcher=ray"]),
    "local": (RUN, ["launcher=local"]),
    "torchrun": (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *RUN], ["launcher=mp"]),
}


@pytest.mark.parametrize("launcher", [pytest.param("ray", marks=pytest.mark.ray), "torchrun"])
def test_the_full_recipes_keys_run_under_every_launcher_and_leave_nothing(launcher, tmp_path, toy_set):
    program, keys = PROGRAMS[launcher]
    process = start(tmp_path, program, toy_set, *TWO_RANKS, *CACHE, "epochs=2", *keys)
    out, err = finish(process)
    assert process.returncode == 0, err
    assert "redis_cfg.redis_cache_max_memory=300 GB is lowered to " in err
    assert "the training files' bytes are kept in memory: 6 shards on each node, here redis-server " in out
    summary = json.loads((tmp_path / "output" / "vit_tp_exp" / "summary.json").read_text())
    assert_second_epoch_comes_from_memory(summary["cache"])
    assert not folder_of(out).exists()


def assert_second_epoch_comes_from_memory(cache: dict[str, int]) -> None:
    """But for what a server was asked in vain, which on a busy machine is a matter of a quarter of a second."""
    assert cache["hits"] + cache["misses"] == 128
    assert cache["hits"] == 64 or (cache["errors"] and 0 < cache["hits"] < 64)


def pids_of(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "pids").read_text().splitlines()]


def said_until(process: subprocess.Popen[str], words: str) -> str:
    said = ""
    assert process.stdout
    while words not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


@pytest.mark.parametrize(
    ("launcher", "number"),
    [pytest.param("ray", signal.SIGKILL, marks=pytest.mark.ray), ("local", signal.SIGINT), ("local", signal.SIGTERM)],
)
def test_servers_and_folder_are_gone_however_the_command_ends(launcher, number, tmp_path, toy_set):
    program, keys = PROGRAMS[launcher]
    process = start(tmp_path, program, toy_set, *TWO_RANKS, *CACHE, "epochs=10000", *keys)
    folder = folder_of(said_until(process, "at sockets in"))
    pids = pids_of(folder)
    assert len(pids) == 6
    assert all(map(is_alive, pids))
    shards = json.loads((folder / "shards.json").read_text())
    secrets = [shards["seal"], shards["servers"][0]["password"]]
    started = time.monotonic()
    while not (last := tmp_path / "output" / "vit_tp_exp" / "last.ckpt").exists():  # an epoch is over
        assert time.monotonic() < started + 60
        time.sleep(0.1)
    arguments = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended just now
            arguments.append(path.read_bytes())
    process.send_signal(number)
    told = [*finish(process), last.read_bytes().decode(errors="replace"), b"".join(arguments).decode(errors="replace")]
    assert process.returncode
    assert_gone(pids, folder, within_s=30)
    assert not any(secret in text for secret in secrets for text in told)


def test_an_unreadable_file_ends_a_run_of_two_replicas_with_its_path(tmp_path, toy_set, case_images):  # A02
    for split in ("train", "val"):
        shutil.copytree(toy_set / split, tmp_path / "set" / split)
    for name in UNREADABLE:
        shutil.copy(case_images / name, tmp_path / "set" / "train" / "c1" / name)
    process = start(tmp_path, RUN, tmp_path / "set", *TWO_RANKS, *CACHE, "launcher=local", "epochs=2")
    out, err = finish(process)
    assert process.returncode == 3, err
    assert re.search(rf"{tmp_path}/set/train/c1/({'|'.join(UNREADABLE)}): ", err)
    assert "Traceback" not in err
    assert_gone([], folder_of(out), within_s=5)


@pytest.mark.netns
@pytest.mark.skipif(bool(missing()), reason=missing() or "hosts are possible")
@pytest.mark.parametrize(("size", "said"), [(-1, "6 shards spread over 2 nodes"), (1, "6 shards on each node")])
def test_over_two_nodes_there_is_one_cache_or_one_a_node(size, said, tmp_path, toy_set):
    before = set(Path("/tmp").glob(f"{FOLDER_PREFIX}*"))
    keys = [*TWO_RANKS, *CACHE, "launcher=mp", "epochs=2", f"redis_cfg.redis_rendezvous_world_size={size}"]
    with two_hosts() as hosts:
        command = [*RUN[1:], *TINY, f"dataloader_cfg.data_root={toy_set}", *keys]
        ranks = start_torchrun(hosts, tmp_path, 1, *command)
        (out, err), _ = (finish(rank) for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], err
    assert said in out
    cache = json.loads((tmp_path / "output" / "vit_tp_exp" / "summary.json").read_text())["cache"]
    # another order in the second epoch: with a cache on each node, half of an epoch's images are new to it
    if size == -1:
        assert_second_epoch_comes_from_memory(cache)
    else:
        assert 0 < cache["hits"] < 64
        assert cache["hits"] + cache["misses"] == 128
    assert not {folder for folder in set(Path("/tmp").glob(f"{FOLDER_PREFIX}*")) - before if guard_is_gone(folder)}


def guard_is_gone(folder: Path) -> bool:
    """Whether nobody holds the lock of a folder of servers, which is there all the same."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
