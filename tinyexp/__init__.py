"""tinyexp: the experiment is the entry point. Importing this package loads no torch, ray or redis."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyexp.experiment.base import TinyExp
    from tinyexp.experiment.entry import store_and_run_exp

__all__ = ["TinyExp", "store_and_run_exp"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "TinyExp":
        from tinyexp.experiment.base import TinyExp

        return TinyExp
    if name == "store_and_run_exp":
        from tinyexp.experiment.entry import store_and_run_exp

        return store_and_run_exp
    raise AttributeError(f"module 'tinyexp' has no attribute {name!r}")
