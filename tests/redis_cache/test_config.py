import math
import os
import stat
from dataclasses import replace

import pytest

from tests.helpers.redis_servers import needs_redis
from tinyexp.errors import ConfigError
from tinyexp.masking import masked
from tinyexp.redis_cache import server
from tinyexp.redis_cache.config import PASSWORD, RedisCfg
from tinyexp.redis_cache.shards import Shard


def outside(**values) -> RedisCfg:
    return replace(RedisCfg(redis_cache_enabled=True, redis_rendezvous_world_size=2), **values)


def test_a_cache_that_is_off_has_no_problem_and_needs_no_server(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert RedisCfg(redis_cache_max_memory=-1).problems() == []


@pytest.mark.redis
@needs_redis
def test_the_defaults_and_the_values_of_the_full_recipe_have_no_problem():
    assert RedisCfg(redis_cache_enabled=True).problems() == []
    assert RedisCfg(redis_cache_enabled=True, redis_cache_max_memory=300).problems() == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"redis_cache_max_memory": 0.0}, ["redis_cfg.redis_cache_max_memory=0.0", "above 0"]),
        ({"redis_cluster_ports": []}, ["redis_cfg.redis_cluster_ports=[]", "one shard each"]),
        ({"redis_cluster_ports": [7000, 7000]}, ["different ports"]),
        ({"redis_cluster_ports": [70000]}, ["70000 is no port"]),
        ({"redis_rendezvous_world_size": 0}, ["redis_cfg.redis_rendezvous_world_size=0", "-1, one over all nodes"]),
        ({"redis_rendezvous_world_size": -2}, ["redis_cfg.redis_rendezvous_world_size=-2"]),
        ({"redis_rendezvous_world_size": 1, "redis_cluster_host": "10.0.0.7"}, ["10.0.0.7", "redis_rendezvous_world_size=2"]),
        ({"redis_url": "http://somewhere"}, ["redis_cfg.redis_url=http://somewhere", "rediss://"]),
        ({"redis_url": "redis://somewhere:port"}, ["redis_cfg.redis_url"]),
        ({"redis_url": "unix://"}, ["unix:///path"]),
        ({"redis_url": "unix://run/r.sock"}, ["unix:///path"]),
        ({"redis_url": "redis://[::1"}, ["redis_cfg.redis_url=redis://[::1: use redis://host:port"]),
        ({"redis_url": "redis://127.0.0.1?db=2"}, ["redis_cfg.redis_url=redis://127.0.0.1?***", "what follows a ?"]),
        ({"redis_url": "unix:///run/r.sock?db=2"}, ["what follows a ?"]),
        ({"redis_url": "redis://nosuch.invalid"}, ["redis_cfg.redis_url: the host nosuch.invalid is not known here"]),
        ({"redis_url": "rediss://nosuch.invalid"}, ["redis_cfg.redis_url: the host nosuch.invalid is not known here"]),
        ({"redis_url": "redis://8.8.8.8"}, ["redis_cfg.redis_url: 8.8.8.8 has the public address 8.8.8.8", "rediss://"]),
        ({"redis_cluster_host": "nosuch.invalid"}, ["redis_cfg.redis_cluster_host: the host nosuch.invalid is not known"]),
        ({"redis_cluster_host": "::ffff:8.8.8.8"}, ["redis_cfg.redis_cluster_host: ::ffff:8.8.8.8 has the public address"]),
        ({"redis_cluster_host": "a" * 70}, ["is not known here"]),
        (
            {"redis_url": "redis://127.0.0.1", "redis_rendezvous_world_size": -1},
            ["world_size=-1 contradicts redis_cfg.redis_url"],
        ),
        ({"redis_url": "redis://127.0.0.1", "redis_cluster_host": "10.0.0.7"}, ["redis_cluster_host=10.0.0.7 contradicts"]),
        ({"redis_url": "redis://127.0.0.1", "redis_cluster_ports": [7000]}, ["redis_cluster_ports=[7000] contradicts"]),
        ({"redis_cache_max_memory": math.nan}, ["redis_cfg.redis_cache_max_memory=nan", "above 0"]),
        ({"redis_cache_max_memory": math.inf}, ["redis_cfg.redis_cache_max_memory=inf", "above 0"]),
    ],
)
def test_what_cannot_work_is_named_with_its_key_and_what_is_allowed(values, words):
    problems = outside(**values).problems()
    assert any(all(word in problem for word in words) for problem in problems), problems


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_url_alone_has_no_problem(world_size):
    assert outside(redis_url="redis://127.0.0.1", redis_rendezvous_world_size=world_size).problems() == []


def test_a_password_in_the_url_is_refused_and_never_repeated():
    [problem] = outside(redis_url="redis://me:hunter2@127.0.0.1:6379").problems()
    assert "hunter2" not in problem
    assert "redis://me:***@127.0.0.1:6379" in problem
    assert PASSWORD in problem
    assert masked("redis://127.0.0.1") == "redis://127.0.0.1"


@pytest.mark.parametrize(
    "url", ["me:hunter2/x@h", ":hunter2#x@h", "me:12#hunter2@h", "me:12/hunter2@h", "me:hunter2]@h", "h?hunter2"]
)
@pytest.mark.parametrize("scheme", ["redis://", ""])
def test_nor_is_one_in_a_malformed_url(scheme, url):
    for is_on in (True, False):
        [problem] = outside(redis_url=scheme + url, redis_cache_enabled=is_on).problems()
        assert "hunter2" not in problem
        assert PASSWORD in problem


@pytest.mark.parametrize("host", ["100.64.0.1", "::ffff:10.0.0.7", "fd00::7"])
def test_shared_mapped_and_local_addresses_are_not_public(host):
    assert outside(redis_cluster_host=host).problems() == []


def test_outside_servers_come_from_ports_or_from_a_url_and_their_password_from_the_environment(monkeypatch):
    monkeypatch.setenv(PASSWORD, "hunter2")
    assert outside(redis_cluster_ports=[1, 2]).outside_servers() == tuple(
        Shard(host="127.0.0.1", port=port, password="hunter2") for port in (1, 2)
    )
    [shard] = RedisCfg(redis_url="rediss://me@localhost:7/3").outside_servers()
    assert shard == Shard(host="localhost", port=7, username="me", password="hunter2", tls=True, db=3)
    assert RedisCfg(redis_url="unix:///run/r.sock").outside_servers()[0].path == "/run/r.sock"
    assert "hunter2" not in f"{shard} {shard!r}"


def test_a_server_at_a_public_address_needs_tls():
    with pytest.raises(ConfigError, match=r"8\.8\.8\.8 has the public address.*rediss://"):
        outside(redis_cluster_host="8.8.8.8").outside_servers()
    with pytest.raises(ConfigError, match=r"rediss://"):
        RedisCfg(redis_url="redis://8.8.8.8").outside_servers()
    assert RedisCfg(redis_url="rediss://8.8.8.8").outside_servers()[0].tls


def fake_server(tmp_path, version: str) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server {version} sha=0 bits=64'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_a_machine_without_a_server_or_with_a_too_old_one_says_so_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake_server(tmp_path, "v=5.0.7")
    [problem] = RedisCfg(redis_cache_enabled=True).problems()
    assert "redis-server is version 5.0.7; 6.2 or newer is needed" in problem
    fake_server(tmp_path, "v=6.2.5")
    assert server.find_server().version == "6.2.5"
    monkeypatch.setenv("PATH", "/nowhere")
    [problem] = RedisCfg(redis_cache_enabled=True).problems()
    assert "no redis-server on PATH; install one" in problem
