"""What a run had of its files, over all ranks: what came from a cache, and what could not be read."""

import json
from pathlib import Path
from typing import Any

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader
from tinyexp.redis_cache.counters import Counts
from tinyexp.redis_cache.service import Service
from tinyexp.training.unreadable import note_unreadable, require_few_unreadable

MOST_NAMES = 100  # of unreadable images in the summary; the record has all


class FilesRecord:
    """The counts of the training set's files. Every rank makes one, and calls its methods."""

    def __init__(self, accelerator: Accelerator, loader: ImageLoader, service: Service | None, folder: Path) -> None:
        self._accelerator = accelerator
        self._loader = loader
        self._service = service
        self._folder = folder  # of the run
        self._total = Counts()

    def end_unfinished_epoch(self) -> None:
        """Say what an epoch that a signal ends early has had of the cache; the epoch that finishes it counts anew."""
        if self._service:
            now = self._cache_counts(self._service)
            if self._accelerator.is_main:
                print(f"Cache, in the unfinished epoch: {(now - self._total).line()}", flush=True)
            self._total = now

    def end_epoch(self) -> dict[str, Any]:
        """Entries for the epoch's line in the log; nothing where there is no cache and nothing is skipped.

        Raises: DataError if too much was skipped.
        """
        row: dict[str, Any] = {}
        if self._service:
            now = self._cache_counts(self._service)
            row |= {f"cache_{name}": value for name, value in (now - self._total).named().items()}
            if self._accelerator.is_main:
                print(f"Cache: {(now - self._total).line()}", flush=True)
            self._total = now
        if self._loader.bad_images:
            row["train_unreadable"] = len(require_few_unreadable(self._accelerator, self._loader, self._folder))
        return row

    def summary(self, val_loader: ImageLoader) -> dict[str, Any]:
        """Entries for the run's summary."""
        found: dict[str, Any] = {"cache": self._total.named()} if self._service else {}
        for split, loader in (("train", self._loader), ("val", val_loader)):
            if loader.bad_images:
                names = note_unreadable(self._accelerator, loader, self._folder)
                found[f"unreadable_{split}"] = {"count": len(names), "files": names[:MOST_NAMES]}
        return found

    def _cache_counts(self, service: Service) -> Counts:
        texts = self._accelerator.exchange(json.dumps(service.cache.counts.named()))
        return sum((Counts(**json.loads(text)) for text in texts), Counts())
