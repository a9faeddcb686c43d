"""The ranks' one meeting of an optimizer step: gradients are added up, and behind them what each rank has to tell.

In: the sums of the batches that this rank trained. Out: those of all batches of the step, in plan order, on every rank.
Each batch has a row that its rank alone fills, so the sum over ranks adds nothing but zeros to it: what a record says
does not depend on how many ranks there are. A float of twice the precision goes as two numbers.
"""

# N batches of a full step, R ranks, C columns

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_exp.drafter.gradient import FlatGradient
from dflash_exp.drafter.loss import BatchSums
from dflash_exp.messages import LossSums

COLUMNS = 10
"""loss, correct, accepted | weight in two parts, slots, anchors, tokens, padded tokens, 1."""
LARGEST = 2**24
"""Whole numbers below it are exact in fp32."""


@dataclass(frozen=True)
class BatchReport:
    """What one batch did."""

    sums: LossSums
    tokens: int
    padded_tokens: int


@dataclass(frozen=True)
class OwnBatch:
    """What one batch of this rank did; the loss may still be under way on its device."""

    sums: BatchSums
    tokens: int
    padded_tokens: int


@dataclass(frozen=True)
class Told:
    """What all ranks know after the meeting."""

    batches: list[BatchReport]
    """In plan order."""
    stop: bool
    """Some rank was asked to stop."""


class Place(Protocol):
    """What the meeting asks of the ranks."""

    @property
    def rank(self) -> int: ...
    def add_up(self, flat: Tensor) -> None:
        """Replace a tensor by its sum over all ranks, which all call it at the same point."""
        ...


def room(n_batches: int, n_ranks: int) -> int:
    """Numbers behind the gradient: a row a batch, who wants to stop, a checksum a rank."""
    return n_batches * COLUMNS + 1 + n_ranks


class Meeting:
    """Belongs to one rank."""

    def __init__(self, sums: FlatGradient, place: Place, n_batches: int) -> None:
        """`n_batches`: of a full step, over all ranks."""
        self._sums, self._place = sums, place
        n_rows = n_batches * COLUMNS
        self._rows_NC = sums.behind[:n_rows].view(n_batches, COLUMNS)
        self._stop, self._checksums_R = sums.behind[n_rows : n_rows + 1], sums.behind[n_rows + 1 :]

    def hold(
        self, own: Mapping[int, OwnBatch], n_batches: int, asked_to_stop: bool, checksum: int | None = None
    ) -> Told:
        """Add up gradients and reports over all ranks. `own`: this rank's batches by their place in the step.

        Raises RuntimeError where a batch of the step was trained by no rank or by two, and where the checksums of
        the parameters (below 2**24, given by all ranks at the same step or by none) differ.
        """
        for place, batch in own.items():
            self._rows_NC[place] = _row(batch, self._rows_NC)
        self._stop.fill_(float(asked_to_stop))
        if checksum is not None:
            self._checksums_R[self._place.rank] = checksum
        self._place.add_up(self._sums.buffer)
        behind = self._sums.behind.to("cpu", torch.float64)  # waits for the device, once a step
        n_rows = self._rows_NC.numel()
        rows = behind[:n_rows].view(-1, COLUMNS)[:n_batches].tolist()
        if checksum is not None:
            _check_replicas([int(value) for value in behind[n_rows + 1 :].tolist()])
        _check_delivery([int(row[-1]) for row in rows])
        return Told([_report(row) for row in rows], bool(behind[n_rows] > 0))


def checksum_of(parameters: Iterable[Tensor]) -> int:
    """Of the bits of float32 or float64 parameters, below 2**24: the same on replicas that are the same."""
    words = (p.detach().view(torch.int32 if p.dtype == torch.float32 else torch.int64) for p in parameters)
    return sum(int(word.sum(dtype=torch.int64)) for word in words) % LARGEST


def _row(batch: OwnBatch, like: Tensor) -> Tensor:
    sums = batch.sums
    weight = torch.tensor(sums.weight, dtype=torch.float64)
    high = weight.to(like.dtype)
    counts = [sums.slots, sums.anchors, batch.tokens, batch.padded_tokens, 1]
    known = torch.cat([high[None], (weight - high)[None], torch.tensor(counts)]).to(like)
    return torch.cat([torch.stack([sums.loss, sums.correct, sums.accepted]).to(like), known])


def _report(row: list[float]) -> BatchReport:
    loss, correct, accepted, high, low, slots, anchors, tokens, padded, _ = row
    counts = (int(correct), int(slots), int(accepted), int(anchors))
    return BatchReport(LossSums(loss, high + low, *counts), int(tokens), int(padded))


def _check_delivery(trained: list[int]) -> None:
    odd = [place for place, times in enumerate(trained) if times != 1]
    if odd:
        shown = ", ".join(f"batch {place} by {trained[place]}" for place in odd)
        raise RuntimeError(f"every batch of a step must be trained by one rank, got {shown}; it was dealt wrongly")


def _check_replicas(checksums: list[int]) -> None:
    if len(set(checksums)) > 1:
        raise RuntimeError(
            f"all ranks must hold the same parameters, got checksums {checksums}, rank by rank; the run cannot go on "
            "from them: the last checkpoint is from before"
        )
