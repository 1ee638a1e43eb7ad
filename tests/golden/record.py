"""The record: numbers that the official code (facebookresearch/deit @ 7e160fe4) produced under today's timm, and their inputs.

Inputs are formulas of numpy's legacy generator, so that they are the same on every machine. Weights, averages and moments are
recorded as three checksums a tensor, under the official names with a fused `attn.qkv`.

DeiT pins timm 0.3.2; this project uses today's timm as it is. The two differ in three places, and nowhere else that was found:

- the far edge of a CutMix box, `centre + cut // 2` there and `centre + (cut + 1) // 2` here: about half of the boxes, and with
  them the share of each target, differ by one row or column; the random numbers drawn are the same;
- drop-path draws uniform floats there and Bernoulli numbers here: other images of a batch are dropped, at the same rate;
- the class token starts at a standard deviation of 0.02 there and 1e-6 here; every other initial tensor is bit-identical.
"""

import functools
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

FOLDER = Path(__file__).parents[1] / "data" / "golden"
NUM_CLASSES = 10  # of the small models
QKV_BIAS = "attn.qkv.bias"

Checksum = dict[str, float]


@functools.cache
def load(name: str) -> dict[str, Any]:
    """A JSON file of the record, compressed or not."""
    packed = FOLDER / f"{name}.json.gz"
    return json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else (FOLDER / f"{name}.json").read_bytes())


def formula_weights(model: str) -> dict[str, Tensor]:
    """float32 weights of every recorded run, by official name. No tensor is zero and no LayerNorm weight is one."""
    return {name: torch.from_numpy(_formula(name, shape)) for name, shape in load("model")["models"][model]["state_dict"]}


def _formula(name: str, shape: list[int]) -> np.ndarray:
    noise = 0.02 * _normal(zlib.crc32(name.encode()), shape)
    scales = name == "norm.weight" or name.endswith((".norm1.weight", ".norm2.weight"))
    return (1 + noise if scales else noise).astype(np.float32)


@functools.cache
def images_and_classes(split: str) -> tuple[Tensor, Tensor]:
    """float32 images and int64 classes of the "train" (600) or "val" (203) split: noise over a faint template of the class."""
    length, seed, step, first = {"train": (600, 101, 7, 3), "val": (203, 102, 3, 1)}[split]
    classes = (step * np.arange(length) + first) % NUM_CLASSES
    templates = _normal(103, [NUM_CLASSES, 3, 32, 32])
    images = _normal(seed, [length, 3, 32, 32]) + 0.2 * templates[classes]
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(classes)


def forward_batch(model: str) -> tuple[Tensor, Tensor]:
    """The one batch of the recorded forward and backward pass: 8 small images, or 2 of 224 pixels."""
    if model == "golden_small":
        seed, shape, classes = 201, [8, 3, 32, 32], (3 * np.arange(8) + 1) % NUM_CLASSES
    else:
        seed, shape, classes = 202, [2, 3, 224, 224], np.array([3, 977])
    return torch.from_numpy(_normal(seed, shape).astype(np.float32)), torch.from_numpy(classes)


class RecordedImages(Dataset):
    """A split of the record as a data set that remembers which images were taken, in which order."""

    def __init__(self, split: str) -> None:
        self.images, classes = images_and_classes(split)
        self.targets = classes.tolist()
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.taken.append(index)
        return self.images[index], self.targets[index]


def checksum(tensor: Tensor) -> Checksum:
    """Sum, norm, and a sum weighted by position, which notices a permutation that the first two miss."""
    values = tensor.detach().double().flatten().numpy()
    return _checksum(values, _ramp(len(values)))


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, Checksum]:
    return {name: checksum(tensor) for name, tensor in tensors.items()}


def total(tensors: Iterable[Tensor]) -> Checksum:
    """The checksum of all tensors together; the positions start anew in each."""
    flat = [tensor.detach().double().flatten() for tensor in tensors]
    return _checksum(torch.cat(flat).numpy(), _ramps(tuple(len(values) for values in flat)))


def bias_parts(weights: Mapping[str, Tensor]) -> dict[str, Checksum]:
    """Checksums of the query, key and value thirds of every fused bias.

    The gradient of the key third is zero in exact arithmetic. What rounding leaves of it AdamW scales up to whole steps, so
    that in float32 the key third is noise, on any program and machine.
    """
    return {
        f"{name}[{part}]": checksum(third)
        for name, bias in weights.items()
        if name.endswith(QKV_BIAS)
        for part, third in zip("qkv", bias.chunk(3), strict=True)
    }


def sha256(tensor: Tensor) -> str:
    """Of the little-endian numbers in C order."""
    array = tensor.detach().contiguous().numpy()
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def _checksum(values: np.ndarray, ramp: np.ndarray) -> Checksum:
    return {"sum": float(values.sum()), "l2": float(np.sqrt((values**2).sum())), "wsum": float(ramp @ values)}


@functools.cache
def _ramps(lengths: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([_ramp(length) for length in lengths])


@functools.cache
def _ramp(length: int) -> np.ndarray:
    return (np.arange(length, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)) / 2**32 - 0.5


def _normal(seed: int, shape: list[int]) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape)
