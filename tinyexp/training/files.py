"""What a run had of its files, over all ranks: what came from a cache, and what could not be read."""

import json
from typing import Any

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader
from tinyexp.redis_cache.counters import Counts
from tinyexp.redis_cache.service import Service

MOST_NAMES = 100  # of unreadable files in the summary; `unreadable` gives all


def unreadable(accelerator: Accelerator, loader: ImageLoader) -> list[str]:
    """The files that any rank could not read so far, sorted; [] where the first of them stops the run. For every rank."""
    if loader.bad_images is None:
        return []
    names = accelerator.exchange(json.dumps(loader.bad_images.names()))
    return sorted({name for own in names for name in json.loads(own)})


class FilesRecord:
    """The counts of the training set's files. Every rank makes one, and calls its methods."""

    def __init__(self, accelerator: Accelerator, loader: ImageLoader, service: Service | None) -> None:
        self._accelerator = accelerator
        self._loader = loader
        self._service = service
        self._total = Counts()

    def end_epoch(self) -> dict[str, Any]:
        """Entries for the epoch's line in the log; nothing where there is no cache and nothing is skipped."""
        row: dict[str, Any] = {}
        if self._service:
            now = self._cache_counts(self._service)
            row |= {f"cache_{name}": value for name, value in (now - self._total).named().items()}
            if self._accelerator.is_main:
                print(f"Cache: {(now - self._total).line()}", flush=True)
            self._total = now
        if self._loader.bad_images:
            row["train_unreadable"] = len(unreadable(self._accelerator, self._loader))
        return row

    def summary(self, val_loader: ImageLoader) -> dict[str, Any]:
        """Entries for the run's summary."""
        found: dict[str, Any] = {"cache": self._total.named()} if self._service else {}
        for split, loader in (("train", self._loader), ("val", val_loader)):
            if loader.bad_images:
                names = unreadable(self._accelerator, loader)
                found[f"unreadable_{split}"] = {"count": len(names), "files": names[:MOST_NAMES]}
        return found

    def _cache_counts(self, service: Service) -> Counts:
        texts = self._accelerator.exchange(json.dumps(service.cache.counts.named()))
        return sum((Counts(**json.loads(text)) for text in texts), Counts())
