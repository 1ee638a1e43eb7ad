"""A run at one moment: copied to the host by every rank in one go, put together as one official checkpoint later, off the loop.

The official layout is that of facebookresearch/deit main.py @ 7e160fe4: `model`, `optimizer`, `lr_scheduler`, `epoch`,
`model_ema`, `scaler`, `args`. What an exact resume needs beyond it stands in an entry of ours, `tinyexp`.
"""

import copy
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tinyexp.parallel.cut import Cut
from tinyexp.process import RandomState
from tinyexp.training.state import TrainState

MOMENTS = ("exp_avg", "exp_avg_sq")
AVERAGE = "model_ema"


@dataclass(frozen=True)
class OfficialLayout:
    """How a model's own parameter names and tensors become those of the official checkpoint, and back."""

    to_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    from_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass
class Snapshot:
    """One rank's contribution. Later steps do not change it."""

    tensors: dict[str, dict[str, Tensor]]  # "model", "exp_avg", ... -> by the model's own names, this rank's part of each
    cuts: Mapping[str, Cut]  # of the tensors that are parts, by the same names
    parts_come_from: range  # ranks that hold a part of the whole; the first is the main one
    replica: dict[str, Any] | None  # random state and meters, from one rank of each replica
    values: dict[str, Any]  # the rest of the file; only the main rank's is used
    names: list[list[str]]  # of the parameters, by optimizer group

    @property
    def sent_bytes(self) -> int:
        """What a rank with parts, other than the main one, sends to it."""
        return sum(part.nbytes for tensors in self.tensors.values() for name, part in tensors.items() if name in self.cuts)


def versions() -> dict[str, str]:
    """Of the packages on which bit-equality of a resumed run depends."""
    return {name: importlib.metadata.version(name) for name in ("tinyexp", "torch", "timm")}


@torch.no_grad()
def take_snapshot(state: TrainState, *, args: Mapping[str, Any], facts: Mapping[str, Any]) -> Snapshot:
    """Copy this rank's contribution to the host. Every rank calls it, between two steps; nothing is sent.

    `args` is the configuration, `facts` more plain values for our own entry of the file.
    """
    accelerator = state.accelerator
    mesh, world, replica = accelerator.mesh, accelerator.world, accelerator.replica
    holds_parts = mesh.dp.rank == 0 and (accelerator.is_main or bool(accelerator.parameters.cuts))
    by_kind: dict[str, Mapping[str, Tensor]] = {"model": accelerator.model.state_dict()}
    if state.ema is not None:
        by_kind[AVERAGE] = state.ema.average
    for moment in MOMENTS:
        found = {name: state.optimizer.state.get(each, {}).get(moment) for name, each in accelerator.parameters.by_name.items()}
        by_kind[moment] = {name: value for name, value in found.items() if value is not None}
    needed = (lambda _: True) if accelerator.is_main else (lambda name: name in accelerator.parameters.cuts)
    speaks = replica.size == world.size or mesh.tp.rank == 0
    return Snapshot(
        tensors={
            kind: {name: value.detach().to("cpu", copy=True) for name, value in tensors.items() if needed(name)}
            for kind, tensors in by_kind.items()
        }
        if holds_parts
        else {},
        cuts=accelerator.parameters.cuts,
        parts_come_from=range(mesh.tp.size if accelerator.parameters.cuts else 1),
        replica=_replica_state(state) if speaks else None,
        values=_values(state, args, facts) if accelerator.is_main else {},
        names=_names_by_group(state),
    )


@torch.no_grad()
def assemble(snapshot: Snapshot, layout: OfficialLayout, *, group: ProcessGroup | None, is_main: bool) -> dict[str, Any] | None:
    """The checkpoint, on the main rank; None on the others. Every rank of `group`, a gloo group of all ranks, must call it."""
    replicas = _gather_replicas(snapshot, group, is_main)
    sharded = _Parts(snapshot, group)
    if not is_main:
        if snapshot.tensors:
            sharded.send()
        return None
    sharded.receive()
    values = snapshot.values
    checkpoint = {
        "model": layout.to_official(sharded.whole("model")),
        "optimizer": _official_optimizer(sharded, layout, values["optimizer"]),
        **{name: values[name] for name in ("lr_scheduler", "epoch", "scaler", "args")},
        "tinyexp": values["tinyexp"] | {"replicas": replicas},
    }
    if AVERAGE in snapshot.tensors:
        checkpoint[AVERAGE] = layout.to_official(sharded.whole("model") | sharded.whole(AVERAGE))
    return checkpoint


class _Parts:
    """The parts of sharded tensors, which travel as one tensor a rank, in one order on every rank."""

    def __init__(self, snapshot: Snapshot, group: ProcessGroup | None) -> None:
        self.snapshot = snapshot
        self.group = group
        self._own = {
            (kind, name): part
            for kind, tensors in snapshot.tensors.items()
            for name, part in tensors.items()
            if name in snapshot.cuts
        }
        self._others: list[dict[tuple[str, str], Tensor]] = []

    def send(self) -> None:
        dist.send(torch.cat([part.reshape(-1) for part in self._own.values()]), dst=0, group=self.group)

    def receive(self) -> None:
        """Of the ranks after this one, whose parts are of the same sizes: cuts are filled up with zeros."""
        for rank in self.snapshot.parts_come_from[1:]:
            sizes = [part.numel() for part in self._own.values()]
            flat = next(iter(self._own.values())).new_empty(sum(sizes))
            dist.recv(flat, src=rank, group=self.group)
            shaped = zip(self._own.items(), flat.split(sizes), strict=True)
            self._others.append({key: piece.view_as(part) for (key, part), piece in shaped})

    def whole(self, kind: str) -> dict[str, Tensor]:
        """The whole tensors of one kind, by the model's own names."""
        found = {}
        for name, own in self.snapshot.tensors[kind].items():
            cut = self.snapshot.cuts.get(name)
            found[name] = own if cut is None else cut.join([own, *(parts[kind, name] for parts in self._others)])
        return found


def _official_optimizer(parts: _Parts, layout: OfficialLayout, values: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's state over whole tensors, numbered as the official one: group by group, each in the model's order."""
    moments = {moment: layout.to_official(parts.whole(moment)) for moment in MOMENTS}
    steps = layout.to_official({name: step.reshape(1) for name, step in values["steps"].items()})
    groups, numbered = [], {}
    for group, own_names in zip(values["groups"], parts.snapshot.names, strict=True):
        official = list(layout.to_official({name: torch.empty(1) for name in own_names}))
        first = len(numbered)
        for index, name in enumerate(official, start=first):
            slot = {moment: moments[moment][name] for moment in MOMENTS if name in moments[moment]}
            numbered[index] = {"step": steps[name][0], **slot} if slot else {}
        groups.append({**group, "params": list(range(first, len(numbered)))})
    return {"state": {index: slot for index, slot in numbered.items() if slot}, "param_groups": groups}


def _values(state: TrainState, args: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    accelerator, slots = state.accelerator, state.optimizer.state
    steps = {
        name: slots.get(parameter, {}).get("step", torch.tensor(0.0)).detach().to("cpu", copy=True)
        for name, parameter in accelerator.parameters.by_name.items()
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in state.optimizer.param_groups]
    own = {
        "step": state.step,
        "epoch": state.epoch,
        "epoch_step": state.epoch_step,
        "epoch_is_trained": state.epoch_is_trained,
        "train_stats": state.train_stats,
        "max_accuracy": state.max_accuracy,
        "last_accuracy": state.last_accuracy,
        "mesh": {"dp": accelerator.mesh.dp.size, "tp": accelerator.mesh.tp.size},
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **facts,
    }
    return copy.deepcopy(
        {
            "optimizer": {"steps": steps, "groups": groups},
            "lr_scheduler": state.lr_scheduler.state_dict(),
            "epoch": state.finished_epoch,
            "scaler": accelerator.scaler.state_dict(),
            "args": dict(args),
            "tinyexp": own,
        }
    )


def _replica_state(state: TrainState) -> dict[str, Any]:
    return {
        "random": RandomState(gpu=True).plain(),
        "meters": {name: meter.plain() for name, meter in state.meters.items()},
    }


def _gather_replicas(snapshot: Snapshot, group: ProcessGroup | None, is_main: bool) -> list[dict[str, Any]]:
    if group is None:
        return [snapshot.replica] if snapshot.replica else []
    gathered: list[Any] | None = [None] * dist.get_world_size(group) if is_main else None
    dist.gather_object(snapshot.replica, gathered, dst=0, group=group)
    return [each for each in gathered or [] if each is not None]


def _names_by_group(state: TrainState) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in state.accelerator.parameters.by_name.items()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in state.optimizer.param_groups]
