"""`bad_images.jsonl` of a run folder: each image that was skipped, once, with its reason. Too many end the run."""

import contextlib
import json
from pathlib import Path

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader
from tinyexp.data.whole_file import write_whole
from tinyexp.errors import DataError
from tinyexp.observability.log import dispensable

BAD_IMAGES = "bad_images.jsonl"


def note_unreadable(accelerator: Accelerator, loader: ImageLoader, folder: Path) -> list[str]:
    """The images that any rank could not read so far, sorted; the record has them all then. Every rank must call it.

    Returns [] where the first of them stops the run.
    """
    if loader.bad_images is None:
        return []
    found: dict[str, str] = {}
    for of_rank in accelerator.exchange(loader.bad_images.reasons()):
        found = of_rank | found
    if accelerator.is_main and found:
        with dispensable(folder / BAD_IMAGES):  # until the next call
            _add(folder / BAD_IMAGES, found)
    accelerator.barrier()  # a rank that leaves now must not end the one that writes
    return sorted(found)


def require_few_unreadable(accelerator: Accelerator, loader: ImageLoader, folder: Path) -> list[str]:
    """As `note_unreadable`. Raises: DataError on every rank if there are more than dataloader_cfg.max_bad_fraction allows."""
    names = note_unreadable(accelerator, loader, folder)
    bad = loader.bad_images
    if bad is not None and len(names) > bad.allowed:
        raise DataError(
            f"{len(names)} of {len(bad.flags):,} images cannot be read, more than the {bad.allowed} that "
            f"dataloader_cfg.max_bad_fraction={bad.max_fraction:g} allows; {folder / BAD_IMAGES} names them with the reasons; "
            "mend or remove them, or allow more"
        )
    return names


def stop_at_many_unreadable(accelerator: Accelerator, loader: ImageLoader, folder: Path) -> None:
    """For between two steps: as `require_few_unreadable`, but as long as there are few, ranks exchange a number only."""
    bad = loader.bad_images
    # ranks that have met the same image both count it, and then the names decide
    if bad is not None and sum(accelerator.exchange(bad.count())) > bad.allowed:
        require_few_unreadable(accelerator, loader, folder)


def _add(path: Path, reasons: dict[str, str]) -> None:
    """What the record does not have yet. A line that was left unfinished goes."""
    lines: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                lines[json.loads(line)["file"]] = line
    new = {name: json.dumps({"file": name, "reason": reason}) for name, reason in sorted(reasons.items()) if name not in lines}
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{line}\n" for line in (lines | new).values()).encode())
