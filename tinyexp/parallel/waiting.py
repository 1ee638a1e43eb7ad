"""How long this process has stood still for other ranks."""

import time
from typing import Self


class Waiting:
    """Adds up the seconds of the blocks that it guards: `with WAITING: work.wait()`. Blocks do not nest."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._since


WAITING = Waiting()  # of the exchanges of this process, whose waits all happen in the thread that trains
