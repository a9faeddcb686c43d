"""Lengths to an epoch as arrays, with its hashes.

`Planner` finds the edges once; `Planner.epoch(e)` builds any epoch on its own, from nothing but the sequences, the
settings and e. An epoch is arrays: 8 million `BatchPlan` objects would take 12 s and 1.7 GB, so one is made when
it is asked for. Which batch of a bucket comes i-th follows, like the composition, from seeds.data; seeds.order
decides the order of the buckets and nothing else, so what two orders differ in is all in order_sha256.
"""

# S sequences, N batches, K buckets

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dflash_exp.messages import BatchPlan
from dflash_exp.plan.align import step_bounds
from dflash_exp.plan.batches import Batches, Batching, check_holds, compose, draw_batches
from dflash_exp.plan.buckets import Buckets, assign
from dflash_exp.plan.interleave import Interleave, option_name
from dflash_exp.plan.seeds import Seeds, named_rng
from dflash_exp.plan.sequences import Sequences, array_sha256

ALGORITHM_VERSION = 2
"""Part of plan_sha256; raised whenever the same settings would give another epoch."""


@dataclass(frozen=True)
class PlanSettings:
    """Everything besides the sequences that an epoch depends on."""

    buckets: Buckets
    batches: Batching
    interleave: Interleave
    batches_per_step: int
    seeds: Seeds

    def __post_init__(self) -> None:
        if self.batches_per_step < 1:
            raise ValueError(f"batches_per_step must be >= 1, got {self.batches_per_step}; 1 trains on every batch")


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch: which batches there are, and in which order they come. A batch's number is its place in the order."""

    epoch: int
    settings: PlanSettings
    sequences: Sequences
    edges: np.ndarray
    """int64 [K], upper bounds in tokens."""
    batches: Batches
    """The batches in canonical order: the same for every strategy."""
    order: np.ndarray
    """int32 [N], the bucket of each batch, in the order of training."""
    drawn: np.ndarray
    """int32 [N], the canonical number of each batch, in the order of training."""

    @property
    def counts(self) -> np.ndarray:
        """Batches per bucket, int64 [K]."""
        return self.batches.counts

    @property
    def n_batches(self) -> int:
        """Batches in this epoch."""
        return len(self.order)

    @property
    def n_steps(self) -> int:
        """Optimizer steps in this epoch, the short one too."""
        return len(self.bounds) - 1

    @cached_property
    def bounds(self) -> np.ndarray:
        """The number of each step's first batch, and the end of the last: int64 [n_steps + 1]."""
        return step_bounds(self.n_batches, self.settings.batches_per_step)

    def batch(self, number: int) -> BatchPlan:
        """The batch at that place in the order; raises IndexError outside 0 .. n_batches - 1."""
        if not 0 <= number < self.n_batches:
            raise IndexError(f"batch number must be in 0 .. {self.n_batches - 1}, got {number}")
        canonical = int(self.drawn[number])
        bucket = int(self.order[number])
        members = self.batches.sequences[self.batches.starts[canonical] : self.batches.starts[canonical + 1]]
        return BatchPlan(
            number=number,
            epoch=self.epoch,
            step=number // self.settings.batches_per_step,
            bucket=bucket,
            index=canonical - int(self.batches.first[bucket]),
            sequence_rows=self.sequences.rows[members].astype(np.int64),
        )

    def step(self, step: int) -> tuple[BatchPlan, ...]:
        """The batches of one optimizer step; raises IndexError outside 0 .. n_steps - 1."""
        if not 0 <= step < self.n_steps:
            raise IndexError(f"step must be in 0 .. {self.n_steps - 1}, got {step}")
        return tuple(self.batch(number) for number in range(int(self.bounds[step]), int(self.bounds[step + 1])))

    def steps(self, start: int = 0) -> Iterator[tuple[BatchPlan, ...]]:
        """The steps from `start` on, one after the other: what a resumed run has left of the epoch."""
        return (self.step(step) for step in range(start, self.n_steps))

    def batch_sums(self, values: np.ndarray) -> np.ndarray:
        """Each batch's sum of a per-sequence value [S], in the order of training [N]."""
        return self.batches.sums(values)[self.drawn]

    def step_sums(self, values: np.ndarray) -> np.ndarray:
        """Each optimizer step's sum of a per-sequence value [S]: [n_steps]."""
        return np.add.reduceat(self.batch_sums(values), self.bounds[:-1])

    @property
    def n_padded_tokens(self) -> int:
        """Tokens of the epoch's rectangles: sequences x longest, summed over the batches."""
        return int((self.batches.longest(self.sequences.lengths) * self.batches.sizes).sum())

    @property
    def weight_per_step(self) -> float | None:
        """Expected weight of the epoch over its steps: the constant of loss.reduction=epoch. None without weights."""
        weights = self.sequences.weights
        return None if weights is None else float(weights.sum(dtype=np.float64)) / self.n_steps

    @property
    def n_anchors(self) -> int | None:
        """Anchors in this epoch; None where the sequences carry none."""
        anchors = self.sequences.anchors
        return None if anchors is None else int(anchors.sum(dtype=np.int64))

    @cached_property
    def batches_sha256(self) -> str:
        """Hash of what the batches hold, in canonical order; no strategy in it.

        Over four little-endian int64 arrays, one after the other: the bucket of each batch, its index within the
        bucket, its number of sequences, and all sequence ids.
        """
        batches = self.batches
        index = np.arange(self.n_batches) - batches.first[batches.bucket]
        ids = self.sequences.rows[batches.sequences]
        return array_sha256(*(part.astype("<i8") for part in (batches.bucket, index, batches.sizes, ids)))

    @cached_property
    def order_sha256(self) -> str:
        """Hash of the order as little-endian int32."""
        return array_sha256(self.order.astype("<i4"))

    @cached_property
    def plan_sha256(self) -> str:
        """Hash of everything the epoch follows from, and of the epoch; never of align, topology or pipeline."""
        settings = self.settings
        follows_from = {
            "algorithm_version": ALGORITHM_VERSION,
            "buckets": {"name": option_name(settings.buckets), **asdict(settings.buckets)},
            "batches": {"name": option_name(settings.batches), **asdict(settings.batches)},
            "interleave": {"name": option_name(settings.interleave), **asdict(settings.interleave)},
            "batches_per_step": settings.batches_per_step,
            "seeds": asdict(settings.seeds),
            "epoch": self.epoch,
            "lengths_sha256": self.sequences.lengths_sha256,
            "ids_sha256": self.sequences.rows_sha256,
            "batches_sha256": self.batches_sha256,
            "order_sha256": self.order_sha256,
        }
        return hashlib.sha256(json.dumps(follows_from, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Planner:
    """Builds epochs, each without any other. Raises ValueError where edges or budget do not hold the longest."""

    def __init__(self, sequences: Sequences, settings: PlanSettings) -> None:
        check_holds(settings.batches, int(sequences.lengths.max()))
        self.sequences = sequences
        self.settings = settings
        self.edges = settings.buckets.upper_bounds(sequences.lengths)
        self._bucket = assign(sequences.lengths, self.edges)
        self._last: EpochPlan | None = None

    def epoch(self, epoch: int) -> EpochPlan:
        """Epoch `epoch`, from 0; the last one asked for is at hand."""
        last = self._last
        if last is None or last.epoch != epoch:
            last = self._last = self._planned(epoch)
        return last

    def _planned(self, epoch: int) -> EpochPlan:
        settings = self.settings
        composed_in = 0 if settings.batches.frozen else epoch
        rng = named_rng("composition", settings.seeds.data, composed_in)
        batches = compose(self.sequences.lengths, self._bucket, len(self.edges), settings.batches, rng)
        order = draw_order(settings.interleave, batches.counts, settings.seeds, epoch)
        drawn = draw_batches(order, batches, named_rng("turn", settings.seeds.data, epoch))
        return EpochPlan(epoch, settings, self.sequences, self.edges, batches, order, drawn)


def draw_order(interleave: Interleave, counts: Sequence[int] | np.ndarray, seeds: Seeds, epoch: int) -> np.ndarray:
    """The order of an epoch with these batches per bucket, int32 [N]: all that a strategy decides.

    Raises ValueError where a strategy (one of the user's, say) does not draw each bucket as often as it has batches.
    """
    order = interleave.order(counts, named_rng("interleave", seeds.order, epoch))
    drawn, wanted = np.bincount(order, minlength=len(counts)).tolist(), np.asarray(counts).tolist()
    if drawn != wanted:
        raise ValueError(
            f"interleave={option_name(interleave)} must draw every bucket as often as it has batches: the counts are "
            f"{wanted}, it drew {drawn}; mend its order()"
        )
    return order


def plan_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Which part of two plans differs, in words, by the hashes of their plan.json; None where none does.

    Plans that differ in order alone hold the same batches: what every comparison of strategies needs.
    """
    if one["batches_sha256"] != other["batches_sha256"]:
        return "more than order (batches_sha256)"
    if one["order_sha256"] != other["order_sha256"]:
        return "order alone (order_sha256)"
    return None if one["plan_sha256"] == other["plan_sha256"] else "what it follows from (plan_sha256)"
