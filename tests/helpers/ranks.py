"""Run a function on real gloo processes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.config import AcceleratorCfg
from tinyexp.launch.local import run_local
from tinyexp.models.vit.plan import build_tp_parallelize_plan
from tinyexp.process import Environment

PRELOADED = ["tests.helpers.equality"]


def run_on_ranks(function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    """What the function returned on each rank. It and its arguments must be picklable."""
    import multiprocessing

    # One server imports torch for all tests; this process has compute threads by now and must not be forked itself.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    return run_local(partial(_joined, function, *arguments), num_ranks, start_method="forkserver")


def build_accelerator(**settings: Any) -> Accelerator:
    """This rank's accelerator on the CPU."""
    return AcceleratorCfg(device="cpu", timeout_s=60, **settings).build(Environment.read(), build_tp_parallelize_plan)


def _joined(function: Callable[..., Any], *arguments: Any) -> Any:
    from tinyexp.accelerators.process_group import close_process_group

    result = function(*arguments)
    close_process_group()
    return result
