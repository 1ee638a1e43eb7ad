"""`tinyexp-run-with-redis`: the servers of a Redis byte cache for as long as one command runs.

    tinyexp-run-with-redis -- torchrun --standalone --nproc-per-node 2 -m tinyexp.examples.vit_tp_exp \\
        launcher=mp redis_cfg.redis_cache_enabled=true

A run starts servers of its own; these outlive it, so that a restarted run, or the next one of the command, finds them full.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from tinyexp.errors import ConfigError, TinyExpError
from tinyexp.redis_cache.config import FOLDER, RedisCfg
from tinyexp.redis_cache.memory import fitting_memory_gb
from tinyexp.redis_cache.server import RedisServers
from tinyexp.signals import StopRequest
from tinyexp.streams import take_output
from tinyexp.wrapped import run_wrapped


def main(arguments: Sequence[str] | None = None) -> None:
    """End this process with the status of the command, or with that of our own error."""
    take_output()
    try:
        found = _parse(sys.argv[1:] if arguments is None else arguments)
        sys.exit(run(found.command, num_shards=found.shards, max_memory_gb=found.max_memory))
    except TinyExpError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_status)


def run(command: Sequence[str], *, num_shards: int, max_memory_gb: float) -> int:
    """The exit status of the command. SIGINT and SIGTERM are passed on to it, and the servers end after it."""
    memory_gb, lowered = fitting_memory_gb(max_memory_gb, asked_by="--max-memory ")
    if lowered:
        print(f"warning: {lowered}", file=sys.stderr, flush=True)
    with StopRequest() as stop:
        servers = RedisServers([str(index) for index in range(num_shards)], max_memory_gb=memory_gb)
        try:
            print(servers, flush=True)
            return run_wrapped(command, os.environ | {FOLDER: str(servers.folder)}, stop)
        finally:
            servers.stop()


def _parse(arguments: Sequence[str]) -> Any:
    description, _, example = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "tinyexp-run-with-redis",
        description=description.partition(": ")[2],
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = RedisCfg()
    shards, memory = len(defaults.redis_cluster_ports), defaults.redis_cache_max_memory
    parser.add_argument("--shards", type=int, default=shards, help=f"servers; default {shards}")
    help_text = f"GB over all shards, lowered to half of the free memory; default {memory:g}"
    parser.add_argument("--max-memory", type=float, default=memory, metavar="GB", help=help_text)
    parser.add_argument("command", nargs="+", help="and its arguments, after --")
    found = parser.parse_args(arguments)
    problems = []
    if found.shards < 1:
        problems.append(f"--shards {found.shards}: a number of at least 1 is needed")
    if not 0 < found.max_memory < math.inf:
        problems.append(f"--max-memory {found.max_memory:g}: a number of GB above 0 is needed")
    if problems:
        raise ConfigError("\n  ".join(["these arguments cannot work:", *problems]))
    return found


if __name__ == "__main__":
    main()
