"""The strategies, side by side: counts of batches per bucket to an order of buckets.

A strategy is a frozen dataclass with one pure method, `order(counts, rng)`: batches per bucket in, the bucket of
every slot out, each bucket exactly as often as it has batches. It sees neither lengths nor batches, so a new one
is one class here and one YAML file; loops over slots stand in `kernels` and `quota`, compiled. Bucket b has n_b of the
N batches, p_b = n_b/N. Figures are for counts 2120, 4200, 5723, 7100, 8009, 19581 (N = 46,733): *deviation* is how many
batches a bucket is ahead of or behind its fair share p_b t, at worst, over all prefixes t; `runs` is the longest.
"""

# N batches, K buckets

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from dflash_exp.plan.counts import checked, in_turn


class Interleave(Protocol):
    """A strategy: a frozen dataclass with one method."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N], each b exactly counts[b] times; a pure function of its arguments."""
        ...


@dataclass(frozen=True)
class Shuffle:
    """A uniform permutation of all batches. Deviation 99, longest run 12."""

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        order = in_turn(counts)
        narrow = order.astype(np.min_scalar_type(len(counts)))  # shuffles alike, and fits the cache for longer
        rng.shuffle(narrow)
        return narrow.astype(np.int32)


@dataclass(frozen=True)
class Sequential:
    """Bucket by bucket, shortest first. Deviation 11,377, longest run 19,581; draws no random number."""

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        return in_turn(counts)


@dataclass(frozen=True)
class RoundRobin:
    """Cycle over the buckets that still have batches. Deviation 6871, longest run 11,573; draws no random number."""

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        counted = checked(counts)
        levels = np.unique([0, *counted])  # between two levels the same buckets take part in every round
        rounds = [np.tile(np.flatnonzero(counted > low), high - low) for low, high in pairwise(levels)]
        return np.concatenate([in_turn([0]), *rounds], dtype=np.int32)


class Weights(StrEnum):
    """What a bucket's chance to be drawn is proportional to."""

    remaining = "remaining"
    """The batches it still has."""
    fixed = "fixed"
    """The batches it had at first, until it runs out."""


@dataclass(frozen=True)
class DiversityFirst:
    """Never the same bucket twice while another has batches left; otherwise a draw by `weights`. The story's rule.

    Deviation 2326 (fixed: 3587), longest run 3664 (fixed: 6102): leaving out the last bucket takes slots from the
    largest in every prefix, and what it was denied comes at the end.
    """

    weights: Weights

    def __post_init__(self) -> None:
        _check_weights(self.weights)

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        from dflash_exp.plan.kernels import drawn_by_weight

        counted = checked(counts)
        return drawn_by_weight(counted, rng.random(counted.sum()), self.weights == Weights.fixed, False)


@dataclass(frozen=True)
class WeightedRandom:
    """Draw by `weights`, without constraint. What remains gives the law of `shuffle`.

    Fixed weights: deviation 156, longest run 52 (up to 321), where small buckets have run out by chance.
    """

    weights: Weights

    def __post_init__(self) -> None:
        _check_weights(self.weights)

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        from dflash_exp.plan.kernels import drawn_by_weight

        counted = checked(counts)
        return drawn_by_weight(counted, rng.random(counted.sum()), self.weights == Weights.fixed, True)


@dataclass(frozen=True)
class Proportional:
    """The i-th of a bucket's n batches, i from 0, at (i + 1/2) N/n: Webster's method of apportionment.

    Deviation 1.14, longest run 3. Other counts bring deviations of several batches; draws no random number.
    """

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        from dflash_exp.plan.kernels import smallest_next

        return smallest_next(checked(counts), 2, 1, 0)


@dataclass(frozen=True)
class StrideJitter:
    """Each bucket evenly over the epoch, from a random phase, every batch jittered and wrapped around the end.

    The i-th of n batches lies at ((i + phase + J (u_i - 1/2)) mod n) N/n. Deviation 2.1, longest run 4 to 5 at J = 1.
    J = 0 is deterministic up to the phases and locks buckets of equal size in step; large J is a shuffle.
    """

    jitter_strides: float
    """J, the full width of the jitter in the bucket's own strides N/n."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.jitter_strides) and self.jitter_strides >= 0):
            raise ValueError(
                f"interleave.jitter_strides must be >= 0, got {self.jitter_strides}; "
                "1 is one stride wide, 0 is none, and interleave=shuffle is its limit"
            )

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        counted = checked(counts)
        phases, position = rng.random(len(counted)), rng.random(counted.sum())
        for n, phase, own in zip(counted, phases, np.split(position, np.cumsum(counted)[:-1]), strict=True):
            own[:] = (np.arange(n) + phase + self.jitter_strides * (own - 0.5)) / n
            own -= np.floor(own)
            own.sort()  # so that the stable sort only has to merge; there, ties go to the lower index
        narrow = in_turn(counted).astype(np.min_scalar_type(len(counted)))  # less memory beside the sort's
        return narrow[np.argsort(position, kind="stable")].astype(np.int32)


@dataclass(frozen=True)
class BlockShuffle:
    """The order of `proportional`, shuffled inside consecutive blocks. Of 32: deviation 5.7, longest run 9 to 15."""

    block_batches: int
    """Batches in a block; the last one holds what remains."""

    def __post_init__(self) -> None:
        if self.block_batches < 1:
            raise ValueError(
                f"interleave.block_batches must be >= 1, got {self.block_batches}; 1 is interleave=proportional, "
                "all batches are interleave=shuffle"
            )

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        order = Proportional().order(counts, rng)
        size = max(1, min(self.block_batches, len(order)))
        n_full = len(order) // size * size
        blocks = order[:n_full].reshape(-1, size)
        rng.permuted(blocks, axis=1, out=blocks)
        rng.shuffle(order[n_full:])
        return order


@dataclass(frozen=True)
class Tijdeman:
    """Chairman assignment: of the buckets that are e or more behind at the slot's end, the one that is due first.

    e = 1/(2k - 2) for k non-empty buckets; due means that its share reaches d + 1 - e, d being drawn. Deviation at most
    1 - e, the best bound that holds for all counts: .90 here, longest run 2. Draws no random number. Tijdeman, The
    chairman assignment problem, Discrete Mathematics 32 (1980).
    """

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        from dflash_exp.plan.kernels import smallest_next

        counted = checked(counts)
        inverse = 2 * max(2, int(np.count_nonzero(counted))) - 2  # 1/e; any e serves a single bucket
        return smallest_next(counted, inverse, inverse - 1, inverse)


@dataclass(frozen=True)
class EarliestDeadline:
    """The smallest deviation that any order of these counts can have: B = .794 here, < 1 always. Longest run 2.

    The j-th batch of a bucket, j from 1, is released at ceil((j - B)/p) and due at floor((j - 1 + B)/p) + 1, both the
    end of a slot; every slot takes the released batch due first, which fails only where no order keeps to B. The
    smallest B is found by bisection. Draws no random number. Steiner and Yeomans, Level schedules for mixed-model,
    just-in-time processes, Management Science 39 (1993).
    """

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]."""
        from dflash_exp.plan.kernels import filled_by_deadline, smallest_bound

        counted = checked(counts)
        order = np.empty(counted.sum(), dtype=np.int32)
        kept = filled_by_deadline(counted, smallest_bound(counted), order)
        assert kept, "the smallest bound is one that was kept to, or Tijdeman's"
        return order


@dataclass(frozen=True)
class QuotaRandom:
    """A random draw, with probability p_b, of what may come next if the deviation is to stay at most B.

    Releases and deadlines are those of `earliest_deadline`; a batch may come if it is released and no T before its own
    deadline needs all slots up to T for what is due by then. B = 1 without repeats: deviation 1.00, longest run 1;
    rotated 1.72 and 1 to 2. This project's own.
    """

    bound_batches: float
    """B; at least what `earliest_deadline` reaches, which 1 always is."""
    no_repeat: bool
    """Draw the last bucket again only where no other may come."""
    rotate: bool
    """Turn the result by a uniform number of slots: every slot is b with probability p_b exactly, within 2 B."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound_batches) and self.bound_batches > 0):
            raise ValueError(
                f"interleave.bound_batches must be > 0, got {self.bound_batches}; 1 suits all counts, more is looser"
            )

    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bucket indices, int32 [N]; raises ValueError where no order of these counts keeps to B."""
        from dflash_exp.plan.quota import drawn_within

        counted = checked(counts)
        chances = rng.random(counted.sum())
        order = drawn_within(counted, self._bound(counted), chances, self.no_repeat)
        return np.roll(order, rng.integers(max(1, len(order)))) if self.rotate else order

    def _bound(self, counted: np.ndarray) -> int:
        """B in 1/N batches, which are what deviations are multiples of, so that rounding down loses nothing."""
        from dflash_exp.plan.kernels import filled_by_deadline, smallest_bound

        n_batches = int(counted.sum())
        bound = min(math.floor(Fraction(str(self.bound_batches)) * n_batches), n_batches**2)
        if bound < n_batches - 1 and not filled_by_deadline(counted, bound, np.empty(n_batches, dtype=np.int32)):
            smallest = math.ceil(Fraction(smallest_bound(counted) * 10**6, n_batches)) / 10**6
            raise ValueError(
                f"interleave.bound_batches must be >= {smallest} for these counts, got {self.bound_batches}; "
                "raise it, or say interleave=earliest_deadline"
            )
        return bound


def _check_weights(weights: Weights) -> None:
    if weights not in list(Weights):
        raise ValueError(f"interleave.weights must be remaining or fixed, got {weights}; the story's is remaining")


def option_name(choice: object) -> str:
    """The one word for what a group chose: class StrideJitter, conf/interleave/stride_jitter.yaml."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(choice).__name__).lower()
