"""The evaluation of a vision transformer: every image of the validation set once."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from tinyexp.accelerators.base import Accelerator
from tinyexp.data.batches import ImageLoader, PaddedBatches
from tinyexp.data.file_list import require_same_images
from tinyexp.data.sharing import Share
from tinyexp.examples.run_record import run_record
from tinyexp.examples.run_start import real_name
from tinyexp.examples.vit_experiment import VitExperiment
from tinyexp.process import preserve_random_state
from tinyexp.signals import StopRequest
from tinyexp.training.epoch import evaluate
from tinyexp.training.predictions import Predictions, write_evaluation
from tinyexp.training.state import TrainState
from tinyexp.training.unreadable import require_few_unreadable


@dataclass
class VitEvaluation(VitExperiment):
    """A vision transformer that is scored: by itself, and after each epoch of its training."""

    def eval(self, accelerator: Accelerator) -> dict[str, Any]:
        """Top-1 and top-5 of the given weights on the validation set, every image once, also in `eval.json`.

        Beside it: each image's prediction, the accuracy of each class, and pictures of what is confused and of the worst images.
        """
        loader, predictions = self._val_loader(accelerator), Predictions()
        self._same_images(accelerator, val=loader)
        state = self.build_state(accelerator, {"classes": loader.classes})
        row = self._score(state, loader, predictions=predictions) | {"mesh": asdict(accelerator.mesh.shape)}
        scored = predictions.gather(accelerator, loader)
        if accelerator.is_main:
            weights = real_name(state.resumed_from or self.module_cfg.pretrained_from)
            run = replace(self, resume_from=weights) if state.resumed_from else self
            told = row | {"weights": weights, "run": run_record(run, accelerator)}
            write_evaluation(self.run_folder, told, scored, loader, self.module_cfg.num_classes)
        return row

    def _score(
        self,
        state: TrainState,
        loader: ImageLoader,
        stop: StopRequest | None = None,
        predictions: Predictions | None = None,
    ) -> dict[str, Any]:
        """Evaluate the weights and, where there is one, their average, which leaves the random state as it was."""
        note = predictions.add if predictions else None
        stats = evaluate(state.accelerator, PaddedBatches(loader), stop=stop, note=note)
        if predictions:
            predictions.end(loader)  # before another pass meets other files
        row: dict[str, Any] = {f"test_{name}": stats[name] for name in ("loss", "acc1", "acc5")}
        bad = require_few_unreadable(state.accelerator, loader, self.run_folder)
        if loader.bad_images:
            row |= {"test_images": stats["images"], "test_unreadable": len(bad)}
        if state.accelerator.is_main:
            print(f"Accuracy of the network on the {stats['images']} test images: {stats['acc1']:.1f}%", flush=True)
            if bad:
                some = ", ".join(bad[:3]) + ", ..." * (len(bad) > 3)
                print(f"{len(bad)} more could not be read and are left out: {some}", flush=True)
        if state.ema is not None:
            with preserve_random_state(), state.ema.in_place_of_weights():
                averaged = evaluate(state.accelerator, PaddedBatches(loader), header="Test EMA:", stop=stop)
            row |= {f"ema_test_{name}": averaged[name] for name in ("loss", "acc1", "acc5")}
        return row

    def _val_loader(self, accelerator: Accelerator) -> ImageLoader:
        return self.dataloader_cfg.build_val(
            accelerator.replica,
            num_classes=self.module_cfg.num_classes,
            device_type=accelerator.device.type,
            share=Share(accelerator.readers, accelerator.gather_rows),
        )

    def _same_images(self, accelerator: Accelerator, **loaders: ImageLoader) -> dict[str, Any]:
        """What lies behind the loaders, the same on every rank, for a checkpoint to tell. Every rank must call it."""
        files = {split: loader.files for split, loader in loaders.items() if loader.files}
        return require_same_images(files, accelerator.exchange) if files else {}
