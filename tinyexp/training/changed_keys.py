"""The keys of a command that continues a run, beside those of the command that began it."""

import argparse
from collections.abc import Mapping
from typing import Any

from tinyexp.errors import CheckpointError
from tinyexp.keys import leaves

# The checkpoint's optimizer and schedule hold these, so another value would be said and not used.
HELD = ("optimizer_cfg.lr", "optimizer_cfg.weight_decay", "optimizer_cfg.opt_eps", "lr_scheduler_cfg.")
# Another value of these changes what is learnt from the resumed step on. Those below change nothing, or are compared elsewhere.
TAKEN = ("seed", "module_cfg.", "optimizer_cfg.", "loss_cfg.", "ema_cfg.", "dataloader_cfg.", "accelerator_cfg.precision")
OF_NO_MATTER = (
    "module_cfg.pretrained_from",
    "module_cfg.recompute",
    "dataloader_cfg.data_",
    "dataloader_cfg.max_bad_fraction",
    "dataloader_cfg.num_workers",
    "dataloader_cfg.on_bad_image",
    "dataloader_cfg.pin_mem",
    "dataloader_cfg.train_batch_size_per_device",
    "dataloader_cfg.val_batch_size_per_device",
)


def changed_keys(saved: Mapping[str, Any] | argparse.Namespace, own: Mapping[str, Any], *, source: str) -> list[str]:
    """What the command changes about the run that wrote a checkpoint, for the user to read.

    `saved` are the configuration that is stored in the checkpoint, nested as ours, or flat as the official code's.
    Raises: CheckpointError for keys of which the checkpoint holds the value that counts.
    """
    own = dict(leaves(own))
    then = _of_official(vars(saved), own) if isinstance(saved, argparse.Namespace) else dict(leaves(saved))
    changed = [key for key in own if key in then and own[key] != then[key]]
    if held := [f"{key}={own[key]} (there {then[key]})" for key in changed if key.startswith(HELD)]:
        raise CheckpointError(
            f"{source} was written by a run with other values of {', '.join(held)}; a resumed run goes on with the checkpoint's "
            f"optimizer and schedule: give those values, or start a new run, under another exp_name, with "
            f"module_cfg.pretrained_from={source}"
        )
    notes = [
        f"{key} {then[key]} then, {own[key]} now" for key in changed if key.startswith(TAKEN) and not key.startswith(OF_NO_MATTER)
    ]
    if "epochs" in changed:
        notes.append(
            f"epochs {then['epochs']} then, {own['epochs']} now: the learning rates stay those of {then['epochs']} epochs"
        )
    return notes


def _of_official(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The official arguments under our keys, whose last words they are. Its `lr` is scaled by the batch already."""
    return {key: saved[name] for key in own if (name := key.rpartition(".")[2]) in saved and name != "lr"}
