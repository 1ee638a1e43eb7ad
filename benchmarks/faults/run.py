"""Break runs and files in every way that a machine does, many times, and count what was lost.

    python -m benchmarks.faults.run [--kills 200] [--seed 0]

Each row is a fault. A trial counts as `lost` where what was announced as saved cannot be continued from, as `wrong` where
something else than the uninterrupted run's state is taken for it, as `hung` where a process does not end in time, as
`left_over` where a process or an unfinished file outlives the run and the start of the next one. Every count has to be 0. The
runs are those of tests/helpers/traced.py: two ranks, checkpoints of 5 MB. Writes benchmarks/results/faults.json.
"""

import argparse
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.faults.files import bit_flips, failing_operations, truncations
from benchmarks.faults.runs import Reference, full_disks, kills_of_a_rank, kills_of_the_run, terminations
from benchmarks.faults.trial import Row
from tests.conftest import write_toy_split

RESULTS = Path(__file__).parents[1] / "results" / "faults.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kill -9 of the whole run while it saves after every step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of each damaged file; the runs themselves write to files of their own
    chance, started = random.Random(arguments.seed), time.monotonic()
    with toy_data() as data, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        reference = Reference(data, folder / "reference")
        campaign = (
            partial(truncations, reference.folder, folder / "cut"),
            partial(bit_flips, reference.folder, folder / "flipped", chance, trials=300),
            partial(failing_operations, folder / "operations"),
            partial(full_disks, reference, folder / "full"),
            partial(terminations, reference, folder / "terminated", chance, trials=10),
            partial(kills_of_a_rank, reference, folder / "rank", chance, trials=10),
            partial(kills_of_the_run, reference, folder / "killed", chance, trials=arguments.kills),
        )
        rows = []
        for fault in campaign:
            rows.append(fault())
            print(rows[-1], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    found = {
        "command": "python -m benchmarks.faults.run",
        "seed": arguments.seed,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "rows": [row.record() for row in rows],
    }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(rows)
    raise SystemExit(any(row.is_bad for row in rows))


@contextmanager
def toy_data() -> Iterator[Path]:
    """The 64 training and 11 validation images of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_toy_split(root / "train", (16, 16, 16, 16))
        write_toy_split(root / "val", (3, 3, 3, 2), seed=1)
        yield root


def show(rows: list[Row]) -> None:
    table = Table(title="what was lost")
    for heading in ("fault", "trials", "lost", "wrong", "hung", "left over"):
        table.add_column(heading, justify="left" if heading == "fault" else "right")
    for row in rows:
        table.add_row(row.fault, *map(str, (row.trials, row.lost, row.wrong, row.hung, row.left_over)))
    Console().print(table)


if __name__ == "__main__":
    main()
