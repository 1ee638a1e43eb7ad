"""A data set checked from end to end: every image read, hashed and decoded.

    python -m tinyexp.data.check <data root>                                  writes <data root>/dataset.json
    python -m tinyexp.data.check <data root> --against <that dataset.json>    what has changed since?

Exit status 3 if an image cannot be read or decoded, or differs from the record. Damage within a JPEG that still decodes is
found by the comparison alone.
"""

import argparse
import os
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tinyexp.data.command import one_message, positive
from tinyexp.data.decoding import MAX_PIXELS
from tinyexp.data.file_bytes import ImageFiles
from tinyexp.data.inspection import Finding, inspect
from tinyexp.data.set_record import SetRecord, differences, read_record, require_format, write_record
from tinyexp.data.sources import DATA_FORMATS, SPLITS, files_of, other_format
from tinyexp.errors import ConfigError, DataError
from tinyexp.limits import home_path
from tinyexp.process import available_cores
from tinyexp.streams import end_of_output

MOST_LINES = 50  # of each list that is printed; the record has all of what is unreadable


@dataclass
class SplitReport:
    """What the images of one split are."""

    classes: Counter[str] = field(default_factory=Counter)  # readable images of each class
    kinds: Counter[str] = field(default_factory=Counter)
    size: int = 0  # bytes in all
    smallest: tuple[int, int] = (0, 0)  # width and height of the image with the fewest pixels
    largest: tuple[int, int] = (0, 0)
    unreadable: int = 0

    def add(self, finding: Finding, class_name: str) -> None:
        self.size += finding.size
        if finding.problem:
            self.unreadable += 1
            return
        self.classes[class_name] += 1
        self.kinds[finding.kind] += 1
        area = finding.pixels[0] * finding.pixels[1]
        if not self.smallest[0] or area < self.smallest[0] * self.smallest[1]:
            self.smallest = finding.pixels
        if area > self.largest[0] * self.largest[1]:
            self.largest = finding.pixels

    def lines(self, split: str) -> list[str]:
        """For the screen."""
        images = self.classes.total()
        ranked = sorted(self.classes.items(), key=lambda item: item[1])
        few, many = (", ".join(f"{name} ({count:,})" for name, count in part) for part in (ranked[:3], ranked[:-4:-1]))
        return [
            f"{split}: {images + self.unreadable:,} images, {self.size:,} bytes, {self.unreadable:,} unreadable",
            f"  classes: {len(self.classes):,}; fewest images: {few}; most: {many}",
            f"  sizes: {self.smallest[0]} x {self.smallest[1]} to {self.largest[0]} x {self.largest[1]} pixels",
            f"  kinds: {', '.join(f'{kind} ({count:,})' for kind, count in self.kinds.most_common())}",
        ]


def check(root: Path, *, data_format: str, processes: int, max_pixels: int = MAX_PIXELS) -> tuple[SetRecord, list[str]]:
    """The record of a data set, and the lines that say what it holds. A split that the root lacks is left out.

    Raises: DataError for a root that holds no images in this format.
    """
    root = root.expanduser().absolute()
    record, lines = SetRecord(data_format, {}), []
    for split, files in _splits(root, data_format).items():
        report = _inspected(split, files, record, processes=processes, max_pixels=max_pixels)
        record.classes[split], record.kinds[split] = dict(report.classes), dict(report.kinds)
        lines += report.lines(split)
    return record, lines


def _splits(root: Path, data_format: str) -> dict[str, ImageFiles]:
    found = {}
    for split in SPLITS:
        if (root / split).is_dir():
            if problem := other_format(root / split, data_format, "--data-format "):
                raise DataError(problem)
            found[split] = files_of(root / split, data_format)
    if not found:
        raise DataError(f"{root} holds neither a folder train nor a folder val; is it a data root?")
    return found


def _inspected(split: str, files: ImageFiles, record: SetRecord, *, processes: int, max_pixels: int) -> SplitReport:
    """Adds the split's files to the record."""
    report, start = SplitReport(), len(files.root) - len(split)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with closing(inspect(files, processes=processes, max_pixels=max_pixels)) as findings, Progress(*columns) as progress:
        task = progress.add_task(split, total=len(files.targets))
        for finding in findings:
            name = files.name(finding.position)[start:]
            record.files[name] = [finding.size, finding.sha256]
            if finding.problem:
                record.unreadable[name] = finding.problem
            report.add(finding, files.classes[files.targets[finding.position]])
            progress.advance(task)
    return report


def main() -> None:
    arguments = _arguments()
    root = arguments.root.absolute()
    with one_message(interrupted="no record was written"):
        if not root.is_dir():
            raise DataError(f"the data root {root} does not exist or is no folder; give the folder that holds train and val")
        then = read_record(arguments.against) if arguments.against else None
        if then:
            require_format(then, arguments.data_format)
        target = arguments.record or (None if then else root / "dataset.json")
        if target:
            _require_free(target)
        now, lines = check(
            root, data_format=arguments.data_format, processes=arguments.processes, max_pixels=arguments.max_pixels
        )
        if target:
            write_record(target, now)  # before anything else may end the command
    with one_message(interrupted=f"the record is in {target}" if target else "no record was written"):
        print("\n".join(lines))
        _print_some("unreadable", [f"{name}: {reason}" for name, reason in now.unreadable.items()])
        changes = differences(now, then) if then else []
        _print_some(f"differs from {arguments.against}", changes)
        if target:
            print(f"size and SHA-256 of {len(now.files):,} images are in {target}; compare later with --against {target}")
        if now.unreadable or changes:
            raise DataError(f"{root}: {len(now.unreadable):,} images are unreadable, {len(changes):,} differ from the record")
        print("every image can be read" + (f" and is as in {arguments.against}" if then else ""))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tinyexp.data.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=home_path, metavar="data_root", help="as dataloader_cfg.data_root")
    parser.add_argument("--data-format", choices=DATA_FORMATS, default="folder", help="default %(default)s")
    parser.add_argument("--processes", type=positive, default=available_cores(), metavar="N", help="default: one a core")
    parser.add_argument("--record", type=home_path, metavar="PATH", help="file to write, instead of <data root>/dataset.json")
    parser.add_argument(
        "--against", type=home_path, metavar="RECORD", help="compare with this record; writes none without --record"
    )
    parser.add_argument("--max-pixels", type=positive, default=MAX_PIXELS, metavar="N", help="as dataloader_cfg.max_pixels")
    return parser.parse_args()


def _require_free(target: Path) -> None:
    """Before hours of reading. Raises: ConfigError."""
    if target.exists():
        raise ConfigError(f"{target} exists and is not overwritten; compare with it by --against {target}, or give --record PATH")
    if not os.access(target.parent, os.W_OK):
        raise ConfigError(f"{target.parent} is no folder that can be written to; choose another place with --record PATH")


def _print_some(title: str, lines: list[str]) -> None:
    for line in lines[:MOST_LINES]:
        print(f"{title}: {line}")
    if len(lines) > MOST_LINES:
        print(f"{title}: and {len(lines) - MOST_LINES:,} more")


if __name__ == "__main__":
    with end_of_output():
        main()
