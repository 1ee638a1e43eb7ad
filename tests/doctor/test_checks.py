"""Each check on a machine that lacks what it looks for."""

import shutil
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.redis_servers import needs_redis
from tinyexp.doctor import devices, folders, machine, network, packages, programs
from tinyexp.doctor.finding import LIMITED, MISSING, OK, Options
from tinyexp.process import available_cores


class Usage(NamedTuple):
    """What a file system says of itself."""

    free: int


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(data_root=str(tmp_path / "data"), output_root=str(tmp_path / "output"))


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "version", "verdict", "advice"),
    [
        ("torch", "2.9.0+cpu", MISSING, "pip install 'torch>=2.14'"),
        ("torch", None, MISSING, "pip install 'torch>=2.14'"),
        ("ray", None, LIMITED, "pip install 'ray>=2.60'"),
        ("timm", "1.0.31.dev0", OK, ""),
        ("torch", "2.15.0a0+git12", OK, ""),
    ],
)
def test_a_package_that_is_absent_or_old_is_named_with_what_to_install(monkeypatch, options, name, version, verdict, advice):
    installed = metadata.version

    def pretended(asked: str) -> str:
        if asked != name:
            return installed(asked)
        if version is None:
            raise metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(metadata, "version", pretended)
    found, said, told = packages.CHECKS["packages"](options)
    assert (said, told) == (verdict, advice), found
    if verdict != OK:
        assert f"no {name}" in found if version is None else f"{name} {version} is below" in found


def test_the_installed_packages_are_those_that_the_project_asks_for(options):
    found, verdict, _ = packages.CHECKS["packages"](options)
    assert verdict == OK, found
    for name in ("torch", "torchvision", "timm", "ray", "hydra-core", "redis"):
        assert f"{name} {metadata.version(name)}" in found
    assert packages.CHECKS["Python"](options)[1] == OK


def test_a_container_with_less_than_it_shows_is_limited(tmp_path, monkeypatch, options):
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "available_cores", lambda: 8)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert machine.CHECKS["cores"](options)[1] == OK
    (tmp_path / "cpu.max").write_text("400000 100000")
    assert "the container may use 4" in machine.CHECKS["cores"](options)[0]
    assert "OMP_NUM_THREADS=2" in machine.CHECKS["cores"](options)[2]
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert machine.CHECKS["cores"](options)[1:] == (LIMITED, "two ranks take turns on one core: it works, at half the speed")


@pytest.mark.parametrize(("gigabytes", "verdict"), [(0.5, MISSING), (2, LIMITED), (64, OK)])
def test_memory_is_judged_by_what_is_free(monkeypatch, options, gigabytes, verdict):
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: int(gigabytes * 1e9))
    assert machine.CHECKS["memory"](options)[1] == verdict


@pytest.mark.parametrize(("free", "verdict"), [(64 << 20, LIMITED), (10**12, OK)])
def test_shared_memory_must_hold_the_batches_of_a_loader_process_a_core(monkeypatch, options, free, verdict):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free))
    found, said, advice = machine.CHECKS["shared memory"](options)
    assert said == verdict, (found, available_cores())
    assert ("--shm-size=8g" in advice) is (verdict == LIMITED)


def test_loopback_is_tried_and_a_refusal_is_told(monkeypatch, options):
    assert network.CHECKS["loopback"](options)[1] == OK

    def refused(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(network, "listen", refused)
    found, verdict, _ = network.CHECKS["loopback"](options)
    assert verdict == MISSING
    assert "Permission denied" in found


def test_a_host_whose_name_nobody_knows_is_limited_to_itself(monkeypatch, options):
    monkeypatch.setattr(network, "host_name", lambda: "no-such-host.invalid")
    assert network.CHECKS["network"](options)[1] == LIMITED
    monkeypatch.setattr(network, "interface_addresses", list)
    assert "no network but loopback" in network.CHECKS["network"](options)[0]


def test_a_data_folder_is_missing_uneven_or_counted(tmp_path, options):
    assert "no train and no val" in folders.CHECKS["data folder"](options)[0]
    for name in ("train/a", "train/b", "val/a"):
        (tmp_path / "data" / name).mkdir(parents=True)
    assert folders.CHECKS["data folder"](options)[1:] == (MISSING, "train and val need the same class folders, one or more")
    (tmp_path / "data/val/b").mkdir()
    found, verdict, _ = folders.CHECKS["data folder"](options)
    assert verdict == OK
    assert "2 classes in train, 2 in val" in found


def test_a_data_folder_of_shards_is_fine_and_the_key_that_reads_them_is_named(tmp_path, options):
    for split in ("train", "val"):
        (tmp_path / "data" / split).mkdir(parents=True)
        assert folders.CHECKS["data folder"](options)[1] == MISSING
        (tmp_path / "data" / split / "00000.tar").touch()
    found, verdict, advice = folders.CHECKS["data folder"](options)
    assert verdict == OK
    assert "shards" in found and "dataloader_cfg.data_format=shards" in advice


def test_an_output_folder_that_cannot_be_made_is_missing_and_nothing_is_left(tmp_path, options):
    assert folders.CHECKS["output folder"](options)[1] == OK
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "output").touch()
    found, verdict, advice = folders.CHECKS["output folder"](options)
    assert verdict == MISSING
    assert "Not a directory" in found
    assert "output_root" in advice


@pytest.mark.parametrize(
    ("address", "verdict", "part"),
    [
        ("127.0.0.1:1", MISSING, "nothing answers at RAY_ADDRESS=127.0.0.1:1"),
        ("ray://a:1", MISSING, "Ray Client"),
        ("auto", OK, "auto"),
    ],
)
def test_a_ray_cluster_that_does_not_answer_is_named(monkeypatch, options, address, verdict, part):
    monkeypatch.setenv("RAY_ADDRESS", address)
    found, said, _ = programs.CHECKS["Ray"](options)
    assert said == verdict
    assert part in found


def test_a_ray_of_our_own_needs_a_folder_with_short_paths(monkeypatch, options):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert programs.CHECKS["Ray"](options)[1] == OK
    monkeypatch.setattr(programs, "FOLDER_PREFIX", "a" * 40)
    assert programs.CHECKS["Ray"](options)[1] == MISSING
    monkeypatch.setattr(programs, "FOLDER_ROOT", "/no/such/folder")
    assert "cannot be written" in programs.CHECKS["Ray"](options)[0]


@pytest.mark.parametrize(
    ("version", "verdict"), [("7.0.15", LIMITED), ("7.2.11", OK), ("8.4.0", OK), ("6.2.19", LIMITED), ("5.0.1", MISSING)]
)
def test_a_redis_server_is_judged_by_its_version(tmp_path, monkeypatch, options, version, verdict):
    program(tmp_path, "redis-server", f"echo Redis server v={version} sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.CHECKS["redis-server"](options)[1] == verdict


def test_without_a_redis_server_the_advice_says_how_to_get_one(tmp_path, monkeypatch, options):
    monkeypatch.setenv("PATH", str(tmp_path))
    found, verdict, advice = programs.CHECKS["redis-server"](options)
    assert (found, verdict) == ("no redis-server on PATH", MISSING)
    assert "apt install redis-server" in advice


@needs_redis
def test_the_redis_server_of_this_machine_is_found(options):
    assert programs.CHECKS["redis-server"](options)[1] in (OK, LIMITED)


def test_gpus_that_this_torch_cannot_use_are_told_with_the_driver(tmp_path, monkeypatch, options):
    import torch

    program(tmp_path, "nvidia-smi", 'echo "NVIDIA H100, 81559 MiB, 550.54"; echo "NVIDIA H100, 81559 MiB, 550.54"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    found, verdict, advice = devices.CHECKS["GPUs"](options)
    assert verdict == MISSING
    assert "NVIDIA H100, 81559 MiB, driver 550.54" in found
    assert "is a CPU build" in found
    assert "ray_cfg.ray_num_gpus_per_worker=0.0" in advice

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040)")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", too_old)
    assert "driver on your system is too old" in devices.CHECKS["GPUs"](options)[0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.CHECKS["GPUs"](options)[1] == LIMITED
    assert devices.CHECKS["2 ranks, nccl"](options)[0] == "not tried, 1 GPUs are usable"


def test_ranks_that_cannot_sum_are_told(monkeypatch, options):
    from tinyexp.errors import WorkerFailed
    from tinyexp.launch import local

    def failing(*_: object) -> None:
        raise WorkerFailed("rank 1 of 2: RuntimeError: no route\n\nTraceback ...")

    monkeypatch.setattr(local, "run_local", failing)
    found, verdict, _ = devices.CHECKS["2 ranks, gloo"](options)
    assert (found, verdict) == ("rank 1 of 2: RuntimeError: no route", MISSING)
