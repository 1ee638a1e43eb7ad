"""Start a model from the weights of an official checkpoint, given as a path or an https URL."""

import hashlib
import math
import re
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinyexp.errors import CheckpointError, MachineError
from tinyexp.limits import path_problem
from tinyexp.masking import masked
from tinyexp.parallel.apply import load_whole
from tinyexp.training.checkpoint import AUTO
from tinyexp.training.checkpoint_file import no_checkpoint, read_checkpoint
from tinyexp.training.same_set import require_same_classes


@dataclass(frozen=True)
class Loaded:
    """What came from a checkpoint into a model."""

    copied: int  # tensors
    total: int  # tensors that the model has
    notes: tuple[str, ...]  # what was changed or left out on the way, for the user to read

    def __str__(self) -> str:
        return "\n  ".join([f"{self.copied} of {self.total} tensors", *self.notes])


def load_pretrained(
    model: nn.Module,
    source: str,
    from_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    *,
    may_drop_head: bool = False,
    classes: Sequence[str] = (),
) -> Loaded:
    """Copy the weights of an official checkpoint into a model that is not sharded yet, strictly but for two cases.

    A position embedding of another image size is interpolated (facebookresearch/deit main.py @ 7e160fe4, --finetune). With
    `may_drop_head`, a head for another number of classes is left as it was drawn; an evaluation never does that. It gives the
    names of its `classes`, which must be those that the file was trained on, if it says so.
    Raises: CheckpointError that names the first differing tensors, nothing being copied then; DataError for other classes;
    MachineError where a URL cannot be reached.
    """
    path = download(source) if "://" in source else Path(source).expanduser()
    checkpoint, source = read_checkpoint(path), masked(source)
    weights = _model_state(checkpoint, source)
    if any(name.startswith(("dist_token", "head_dist.")) for name in weights):
        raise CheckpointError(f"{source} is a distilled DeiT (it has dist_token or head_dist), which no model here has")
    own, ours = model.state_dict(), checkpoint.get("tinyexp")
    then = ours.get("classes", ()) if isinstance(ours, Mapping) else ()
    notes = require_same_classes(then, classes, source=source, advice="evaluate it on the set that it was trained for")
    state = from_official(weights)
    prefix = getattr(model, "num_prefix_tokens", 1)
    if "pos_embed" in state and "pos_embed" in own and state["pos_embed"].shape != own["pos_embed"].shape:
        before = state["pos_embed"].shape[1]
        state["pos_embed"] = interpolate_position_embedding(state["pos_embed"], own["pos_embed"].shape[1], prefix=prefix)
        notes.append(f"pos_embed interpolated from {before} to {own['pos_embed'].shape[1]} tokens")
    dropped = [name for name in ("head.weight", "head.bias") if name in state and state[name].shape != own[name].shape]
    if may_drop_head and dropped:
        notes.append(f"head starts anew: the file has {len(state['head.bias'])} classes, the model {len(own['head.bias'])}")
        state |= {name: own[name].clone() for name in ("head.weight", "head.bias")}
        dropped = ["head.weight", "head.bias"]
    try:
        load_whole(model, state)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{source} does not fit the model: {_difference(own, state)}") from error
    return Loaded(len(own) - (len(dropped) if may_drop_head else 0), len(own), tuple(notes))


def weights_problems(key: str, source: str) -> list[str]:
    """What is wrong with a key whose value is nothing, an https URL, or a file that begins as a checkpoint does."""
    if "://" not in source:
        return _file_problems(key, source)
    return [] if source.startswith("https://") else [_no_url(key, source)]


def resume_problems(key: str, source: str) -> list[str]:
    """The same of one whose value is nothing, `auto`, or such a file."""
    if "://" in source:
        return [f"{key}={masked(source)}: a run continues from a file; fetch it and give its path"]
    return [] if source == AUTO else _file_problems(key, source)


def _file_problems(key: str, source: str) -> list[str]:
    if not source:
        return []
    if problem := path_problem(key, source):
        return [problem]
    problem = no_checkpoint(Path(source).expanduser())
    return [f"{key}={source}: {problem}"] if problem else []


def _no_url(key: str, source: str) -> str:
    return f"{key}={masked(source)}: only a path or an https URL is read"


def interpolate_position_embedding(embedding: Tensor, num_tokens: int, *, prefix: int = 1) -> Tensor:
    """(1, prefix + old grid, dim) -> (1, num_tokens, dim): bicubic over the square grid, the prefix tokens kept as they are.

    Raises: CheckpointError where either grid is not square.
    """
    old, new = (math.isqrt(count - prefix) for count in (embedding.shape[1], num_tokens))
    if old * old != embedding.shape[1] - prefix or new * new != num_tokens - prefix:
        raise CheckpointError(
            f"pos_embed has {embedding.shape[1]} tokens and the model {num_tokens}; only square grids are interpolated"
        )
    grid = embedding[:, prefix:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat([embedding[:, :prefix], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def _model_state(checkpoint: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """The weights by name, without the `module.` that a data-parallel wrapper puts before each."""
    weights = checkpoint.get("model", checkpoint)
    if not isinstance(weights, dict) or not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{source} holds no state of a model; an official file has one under 'model'")
    return {name.removeprefix("module."): value for name, value in weights.items()}


def download(url: str) -> Path:
    """The file behind an https URL, kept in torch's cache folder; the hash that its name carries is checked."""
    if not url.startswith("https://"):
        raise CheckpointError(_no_url("module_cfg.pretrained_from", url))
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if parts.query:  # which may say what the file is, and may be a secret
        name = f"{hashlib.sha256(url.encode()).hexdigest()[:16]}_{name}"
    target = Path(torch.hub.get_dir()) / "checkpoints" / name
    if target.is_file():
        return target
    hashed = re.search(r"-([0-9a-f]{8,})\.", name)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:  # torch writes to a file of its own and renames it once the hash is right, so concurrent callers are safe
        torch.hub.download_url_to_file(url, str(target), hash_prefix=hashed.group(1) if hashed else None, progress=False)
    except (urllib.error.URLError, OSError) as error:
        raise MachineError(
            f"cannot download {masked(url)}: {error}; fetch it elsewhere and set module_cfg.pretrained_from=<path>"
        ) from None
    except RuntimeError as error:
        raise CheckpointError(f"{masked(url)} is not the file that its name promises: {error}") from None
    return target


def _difference(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    shapes = [
        f"{name} is {tuple(state[name].shape)}, the model has {tuple(own[name].shape)}"
        for name in own.keys() & state.keys()
        if own[name].shape != state[name].shape
    ]
    differences = (("missing", missing), ("unexpected", unexpected), ("other shapes", shapes))
    return "; ".join(f"{what} ({len(names)}): {', '.join(sorted(names)[:3])}" for what, names in differences if names)
