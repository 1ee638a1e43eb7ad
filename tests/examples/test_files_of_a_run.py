"""Whole runs whose files are odd, or whose cache fails: the same training, the right counts, and nothing left behind."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.conftest import write_toy_split
from tests.data_room.test_decoding import COLOURS, UNREADABLE
from tests.helpers.ranks import run_on_ranks
from tests.helpers.redis_servers import PlainServer, client_of, needs_redis, own_servers, plain_server
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.errors import DataError
from tinyexp.examples import vit_tp_exp
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.launch.ray_workers import RayCfg
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.process import Environment
from tinyexp.redis_cache import shards
from tinyexp.redis_cache.client import RedisByteCache
from tinyexp.redis_cache.config import FOLDER, RedisCfg

pytestmark = [pytest.mark.redis, needs_redis]

OFF = RedisCfg()
OWN = RedisCfg(True, redis_cache_max_memory=0.1, redis_cluster_ports=[1, 2])


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Without the picture of the curves, which takes as long as the rest, and with one thread a process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with mock.patch.object(vit_tp_exp, "draw_curves", lambda rows, path, **_: path):
        yield
    torch.set_num_threads(threads)


def at(server: PlainServer) -> RedisCfg:
    return RedisCfg(True, redis_cluster_ports=[server.port], redis_rendezvous_world_size=2)


class Run:
    """One run in this process, and what it wrote."""

    def __init__(
        self,
        root: Path,
        output: Path,
        redis_cfg: RedisCfg,
        *,
        epochs: int = 3,
        num_classes: int = 4,
        accelerator: str = "cpu",
        **data,
    ) -> None:
        data_cfg = {"train_batch_size_per_device": 8, "val_batch_size_per_device": 8, "num_workers": 0, "repeated_aug": False}
        self.experiment = VitTpExp(
            launcher="mp",
            output_root=str(output),
            epochs=epochs,
            accelerator_cfg=AcceleratorCfg(accelerator=accelerator, device="cpu"),
            ray_cfg=RayCfg(ray_num_gpus_per_worker=0.0),
            module_cfg=ModuleCfg("deit_digits_patch8_32", depth=1, img_size=40, num_classes=num_classes),
            dataloader_cfg=DataLoaderCfg(data_root=str(root), input_size=40, **(data_cfg | data)),
            redis_cfg=redis_cfg,
        )
        self.experiment.ema_cfg.model_ema = False
        self.experiment.loss_cfg.mixup = self.experiment.loss_cfg.cutmix = 0.0  # which need even batches
        self.experiment.validate()
        start = time.monotonic()
        self.experiment.run()
        self.seconds = time.monotonic() - start
        if Environment.read().world.rank:
            return
        self.rows = [json.loads(line) for line in (self.experiment.run_folder / "log.txt").read_text().splitlines()]
        self.summary = json.loads((self.experiment.run_folder / "summary.json").read_text())

    @property
    def losses(self) -> list[tuple[float, float]]:
        return [(row["train_loss"], row["test_loss"]) for row in self.rows]


@pytest.fixture(scope="module")
def without_cache(toy_set, tmp_path_factory) -> Run:
    return Run(toy_set, tmp_path_factory.mktemp("off"), OFF)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_losses_are_bit_equal_with_and_without_the_cache_and_later_epochs_come_from_memory(
    toy_set, tmp_path, without_cache, num_workers, capsys, monkeypatch
):
    monkeypatch.setattr(shards, "LOCAL_TIMEOUT_S", 30.0)  # no server is lost to a busy machine
    run = Run(toy_set, tmp_path, OWN, num_workers=num_workers)
    assert run.losses == without_cache.losses
    assert [row["cache_hits"] for row in run.rows] == [0, 64, 64]
    assert [row["cache_misses"] for row in run.rows] == [64, 0, 0]
    assert run.rows[2]["cache_bytes"] == sum(path.stat().st_size for path in (toy_set / "train").glob("*/*"))
    assert run.summary["cache"]["hits"] == 128
    assert not any("cache" in key for key in (*without_cache.rows[0], *without_cache.summary))
    assert "Cache: 64 hits (100.0%), 0 misses, 0 refused, 0 errors" in capsys.readouterr().out


# --- a server that fails in the middle of an epoch


def fill(server: PlainServer) -> None:
    with client_of(server.shard()) as client:
        client.config_set("maxmemory", "1")


def corrupt(server: PlainServer) -> None:
    with client_of(server.shard()) as client:
        for key in client.keys("tinyexp:1:*"):  # pyright: ignore[reportGeneralTypeIssues]  never a coroutine here
            client.set(key, client.get(key)[:-1] + b"?")  # pyright: ignore[reportOptionalSubscript, reportOperatorIssue]


FAULTS: dict[str, tuple[Callable[[PlainServer], object], Callable[[dict], bool]]] = {
    "killed": (lambda server: server.process.kill(), lambda counts: counts["hits"] < 64 and counts["errors"] >= 1),
    "silent": (
        lambda server: os.kill(server.process.pid, signal.SIGSTOP),
        lambda counts: counts["hits"] < 64 and 1 <= counts["errors"] <= 2,  # one timeout, and another one at the try 5 s later
    ),
    "full": (fill, lambda counts: counts["refused"] == 8 and counts["hits"] == 2 * 24 and counts["errors"] == 0),
    "corrupted": (corrupt, lambda counts: counts["damaged"] == 24 and counts["hits"] == 128 - 24 and counts["errors"] == 0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_fails_in_mid_epoch_changes_no_loss_and_costs_little(
    name, toy_set, tmp_path, without_cache, monkeypatch, caplog
):
    fault, are_right = FAULTS[name]
    with plain_server(on_port=True) as server:
        puts, put_many = [], RedisByteCache.put_many

        def put_and_fail_after_the_third_batch(cache, values):
            put_many(cache, values)
            puts.append(len(values))
            if len(puts) == 3:
                fault(server)

        monkeypatch.setattr(RedisByteCache, "put_many", put_and_fail_after_the_third_batch)
        run = Run(toy_set, tmp_path, at(server))
        if name == "silent":
            os.kill(server.process.pid, signal.SIGCONT)
    assert run.losses == without_cache.losses
    assert are_right(run.summary["cache"]), run.summary["cache"]
    assert run.summary["cache"]["hits"] + run.summary["cache"]["misses"] == 3 * 64
    assert run.seconds < 2 * without_cache.seconds + 10  # which is what servers may cost in a whole run
    assert len([record for record in caplog.records if "Redis" in record.getMessage()]) == (name != "corrupted")


def test_servers_that_are_killed_under_loader_workers_change_no_loss(toy_set, tmp_path, without_cache, monkeypatch):
    with own_servers(2) as servers:
        monkeypatch.setenv(FOLDER, str(servers.folder))
        puts, put_many = multiprocessing.Value("i", 0), RedisByteCache.put_many

        def put_and_kill_after_the_third_batch(cache, values):
            put_many(cache, values)
            with puts.get_lock():
                puts.value += 1
                if puts.value == 3:
                    for pid in servers.pids:
                        os.kill(pid, signal.SIGKILL)

        monkeypatch.setattr(RedisByteCache, "put_many", put_and_kill_after_the_third_batch)
        run = Run(toy_set, tmp_path, OWN, num_workers=2)
    assert run.losses == without_cache.losses
    assert run.summary["cache"]["errors"] >= 1


def test_a_cache_of_images_that_are_no_files_is_refused():
    experiment = VitTpExp(dataloader_cfg=DataLoaderCfg(fake_data=True), redis_cfg=OWN)
    assert len([line for line in experiment.problems() if "dataloader_cfg.fake_data=true there is no file" in line]) == 1
    experiment.redis_cfg = OFF
    assert not any("redis_cfg" in line for line in experiment.problems())


def two_epochs_on_a_rank(root: Path, output: Path, redis_cfg: RedisCfg) -> tuple[list, dict] | None:
    multiprocessing.set_start_method("fork", force=True)  # of loader workers; the tests' ranks are no forks themselves
    run = Run(root, output, redis_cfg, epochs=2, accelerator="tp", num_workers=2)
    return None if Environment.read().world.rank else (run.losses, run.summary)


def test_a_server_that_is_too_small_serves_what_it_holds_at_tp_2(tmp_path, capfd):  # A15
    write_toy_split(tmp_path / "set" / "train", (16, 16, 16, 16), side=240)
    write_toy_split(tmp_path / "set" / "val", (3, 3, 3, 2), seed=1)
    files = list((tmp_path / "set" / "train").glob("*/*"))
    assert 18_000 < sum(path.stat().st_size for path in files) / 64 < 32_000
    losses, _ = run_on_ranks(two_epochs_on_a_rank, 2, tmp_path / "set", tmp_path / "off", OFF)[0]
    with plain_server("--maxmemory", "2mb", "--maxmemory-policy", "noeviction", on_port=True) as server:
        found, summary = run_on_ranks(two_epochs_on_a_rank, 2, tmp_path / "set", tmp_path / "on", at(server))[0]
    assert found == losses
    cache = summary["cache"]
    assert cache["errors"] == 0
    assert cache["hits"] + cache["misses"] == 128
    assert 1 <= cache["refused"] <= 32  # the batches under way when it filled up, two a rank; not 64 an epoch
    assert 0 < cache["hits"] < 64
    assert capfd.readouterr().err.count("is full; what does not fit is read from disk") <= 2  # one a rank


# --- odd files


def odd_set(root: Path, case_images: Path) -> Path:
    for split in ("train", "val"):
        (root / split / "c0").mkdir(parents=True)
        for name in COLOURS:
            shutil.copy(case_images / name, root / split / "c0" / name)
    return root


def test_unusual_files_train_and_evaluate_alike_from_disk_and_from_memory(tmp_path, case_images, recwarn, caplog):  # A01
    root = odd_set(tmp_path / "set", case_images)
    batches: dict[str, Any] = {"train_batch_size_per_device": 5, "val_batch_size_per_device": 5}
    off, on = (
        Run(root, tmp_path / str(cfg.redis_cache_enabled), cfg, epochs=2, num_classes=1, auto_augment="", **batches)
        for cfg in (OFF, OWN)
    )
    assert on.losses == off.losses
    assert on.summary["cache"]["hits"] == 5
    assert not list(recwarn)
    assert not [record for record in caplog.records if record.name == "tinyexp" and record.levelname == "WARNING"]


@pytest.fixture
def spoiled(tmp_path, toy_set, case_images) -> Path:
    root = tmp_path / "set"
    for split in ("train", "val"):
        shutil.copytree(toy_set / split, root / split)
        for name in UNREADABLE:
            shutil.copy(case_images / name, root / split / "c1" / name)
    return root


@pytest.mark.parametrize("redis_cfg", [OFF, OWN], ids=["off", "on"])
def test_an_unreadable_file_stops_the_run_with_its_path(spoiled, tmp_path, redis_cfg):  # A02
    with pytest.raises(DataError) as stop:
        Run(spoiled, tmp_path, redis_cfg)
    assert str(stop.value).startswith(f"{spoiled}/train/c1/")
    assert Path(str(stop.value).partition(": ")[0]).name in UNREADABLE


@pytest.mark.parametrize("redis_cfg", [OFF, OWN], ids=["off", "on"])
def test_skipped_files_are_counted_and_named_in_the_summary(spoiled, tmp_path, redis_cfg, capsys):  # A02
    run = Run(spoiled, tmp_path, redis_cfg, epochs=2, on_bad_image="skip", train_batch_size_per_device=3)
    for split in ("train", "val"):
        found = run.summary[f"unreadable_{split}"]
        assert found == {"count": 5, "files": sorted(str(spoiled / split / "c1" / name) for name in UNREADABLE)}
    assert [(row["test_images"], row["test_unreadable"], row["train_unreadable"]) for row in run.rows] == [(11, 5, 5)] * 2
    out = capsys.readouterr().out
    assert "Accuracy of the network on the 11 test images" in out
    assert f"5 more could not be read and are left out: {spoiled}/val/c1/" in out
    if redis_cfg is OWN:
        assert run.rows[1]["cache_hits"] > 0
        assert run.rows[1]["cache_misses"] == 5  # an unreadable or empty file is never a hit
