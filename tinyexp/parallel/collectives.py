"""The exchanges of a tensor-parallel block, as pairs of functions that autograd can walk back through.

Every rank of the group must take part in each of them, in the same order, with tensors of the same shape and dtype.
Each exchange has its mirror image in backward:

    GATHER_IMAGES            forward all-gather        backward reduce-scatter
    REDUCE_SCATTER_IMAGES            reduce-scatter             all-gather
    COPY_TO_GROUP                    (nothing)                  all-reduce
    SUM_OVER_GROUP                   all-reduce                 (nothing)

`depart` starts an exchange and returns at once; calling what it returned waits for the arrival. What runs in between hides the
wire, in backward too: autograd walks nodes in the reverse order of their creation, so that the way back departs where the
forward arrived, and arrives where it departed, with the gradients of the same work in between.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tinyexp.parallel.waiting import WAITING

Pending = Callable[[], Tensor]  # waits, and returns what arrived
Start = Callable[[Tensor, ProcessGroup], Pending]


@dataclass(frozen=True)
class Exchange:
    """What crosses the wire in forward, and what the gradient does on its way back."""

    ahead: Start
    back: Start

    def depart(self, tokens: Tensor, group: ProcessGroup) -> Pending:
        """Start the exchange of this rank's tensor; the result, called once, is the differentiable tensor that arrived."""
        trip = _Trip(self, group, tokens.shape)
        passed = _Depart.apply(tokens, trip)
        return lambda: _Arrive.apply(passed, trip)

    def __call__(self, tokens: Tensor, group: ProcessGroup) -> Tensor:
        """Depart and wait."""
        return self.depart(tokens, group)()


class _Trip:
    """One use of an exchange: the transfer under way, first ahead, later back."""

    def __init__(self, exchange: Exchange, group: ProcessGroup, shape: torch.Size) -> None:
        self.exchange = exchange
        self.group = group
        self.shape = shape  # of what departed
        self._pending: Pending | None = None

    def depart(self, start: Start, tensor: Tensor) -> None:
        self._pending = start(tensor, self.group)

    def arrive(self) -> Tensor:
        assert self._pending is not None, "an exchange arrives once"
        pending, self._pending = self._pending, None
        return pending()


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(tokens: Tensor, trip: _Trip) -> Tensor:
        trip.depart(trip.exchange.ahead, tokens)
        return tokens.view_as(tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Trip], output: Tensor) -> None:
        ctx.trip = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.trip.arrive(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(passed: Tensor, trip: _Trip) -> Tensor:
        return trip.arrive()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Trip], output: Tensor) -> None:
        ctx.trip = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        trip = ctx.trip
        trip.depart(trip.exchange.back, gradients[0])
        # The gradient itself arrives in _Depart; autograd asks for a tensor of its shape meanwhile, and this one has no bytes.
        return gradients[0].new_zeros(()).expand(trip.shape), None


def _all_gather(rows: Tensor, group: ProcessGroup) -> Pending:
    """(B, ...) of this rank -> (group size * B, ...), the ranks' images in rank order."""
    rows = rows.contiguous()
    gathered = rows.new_empty((group.size(), *rows.shape))
    if dist.get_backend(group) == "gloo":
        arrived = _swap([rows] * group.size(), gathered, group)
    else:
        arrived = _when_done(dist.all_gather_single(gathered, rows, group=group, async_op=True), gathered, rows)
    return lambda: arrived().flatten(0, 1)


def _reduce_scatter(rows: Tensor, group: ProcessGroup) -> Pending:
    """(group size * B, ...) partial sums -> (B, ...), the sum over the group of this rank's images."""
    rows = rows.contiguous()
    parts = rows.unflatten(0, (group.size(), -1))
    if dist.get_backend(group) == "gloo":
        arrived = _swap(parts, torch.empty_like(parts), group)
        return lambda: arrived().sum(0)
    reduced = torch.empty_like(parts[0])
    return _when_done(dist.reduce_scatter_single(reduced, rows, group=group, async_op=True), reduced, rows)


def _swap(outgoing: Sequence[Tensor] | Tensor, incoming: Tensor, group: ProcessGroup) -> Pending:
    """Send outgoing[r] to each rank r, and receive incoming[r] from it.

    gloo's own all-to-all and gather post the receive after the send, which then waits behind what is being sent the other way:
    they use the wire one direction at a time. Its reduce-scatter is an all-reduce, and sends everything to everyone.
    """
    mine = group.rank()
    peers = [rank for rank in range(group.size()) if rank != mine]
    tag = next(_tags.setdefault(group.group_name, itertools.count()))  # of the exchange, the same on every rank
    received = [dist.irecv(incoming[peer], group=group, group_src=peer, tag=tag) for peer in peers]
    sent = [dist.isend(outgoing[peer], group=group, group_dst=peer, tag=tag) for peer in peers]
    incoming[mine].copy_(outgoing[mine])

    def wait() -> Tensor:
        for work in (*received, *sent):
            assert work is not None, "this process is not in the group"
            with WAITING:
                work.wait()
        return incoming

    return wait


_tags: dict[str, Iterator[int]] = {}  # by group


def _all_reduce(values: Tensor, group: ProcessGroup) -> Pending:
    """Partial sums -> the sum over the group, on every rank."""
    total = values.clone(memory_format=torch.contiguous_format)
    return _when_done(dist.all_reduce(total, group=group, async_op=True), total)


def _stay(tokens: Tensor, group: ProcessGroup) -> Pending:
    """Nothing is sent."""
    return lambda: tokens.view_as(tokens)


def _when_done(work: dist.Work | None, received: Tensor, sent: Tensor | None = None) -> Pending:
    """`sent` must outlive the transfer, and does so as an argument that waits with it."""
    assert work is not None, "this process is not in the group"
    return partial(_wait, work, received, sent)


def _wait(work: dist.Work, received: Tensor, sent: Tensor | None) -> Tensor:
    with WAITING:
        work.wait()
    return received


GATHER_IMAGES = Exchange(ahead=_all_gather, back=_reduce_scatter)
REDUCE_SCATTER_IMAGES = Exchange(ahead=_reduce_scatter, back=_all_gather)
COPY_TO_GROUP = Exchange(ahead=_stay, back=_all_reduce)
SUM_OVER_GROUP = Exchange(ahead=_all_reduce, back=_stay)
