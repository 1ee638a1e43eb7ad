"""tinyexp: the experiment is the entry point. Importing this package loads no torch, ray or redis."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyexp.experiment.base import TinyExp
    from tinyexp.experiment.entry import store_and_run_exp

__all__ = ["TinyExp", "store_and_run_exp"]
__version__ = "0.1.0"

# While Python looks for the module of `python -m`, that is the name of the command, and the module's name stands before its
# arguments. What a command of ours imports next takes seconds, in which it has to bear Ctrl-C and closed streams already
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] == __name__:
    from tinyexp.signals import leave_when_interrupted
    from tinyexp.streams import fill_closed_descriptors

    leave_when_interrupted()
    fill_closed_descriptors()


def __getattr__(name: str) -> object:
    if name == "TinyExp":
        from tinyexp.experiment.base import TinyExp

        return TinyExp
    if name == "store_and_run_exp":
        from tinyexp.experiment.entry import store_and_run_exp

        return store_and_run_exp
    raise AttributeError(f"module 'tinyexp' has no attribute {name!r}")
