"""One bucket's sequences to batches, under a token budget or of a fixed size.

Sequences arrive in a random order of their own and are packed greedily: a batch is closed when one more sequence
would push its padded tokens (sequences x longest) over the budget. Nothing is dropped: a bucket's last batch is
kept however short. Packing in arrival order (`pool: 0`) wastes about 14 % of the rectangle and keeps the composition
as random as can be; pools of 256 arrivals, each sorted by length before packing, waste 1 % and leave it to chance
which sequences share a pool. From `COMPILED_FROM` sequences on kernels do it (`packing.py`); below, no compiler is
imported.
"""

# S sequences, N batches, K buckets

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

COMPILED_FROM = 2**17
"""Sequences from which the kernels pay: 131,072 take Python 20 ms, and numba 500 ms to import."""
UNLIMITED = 2**62


class Batching(Protocol):
    """How a bucket is cut into batches: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def budget_tokens(self) -> int | None:
        """Padded tokens a batch may hold, sequences x longest; None: any number."""
        ...

    @property
    def max_sequences(self) -> int | None:
        """Sequences a batch may hold; None: any number."""
        ...

    @property
    def pool(self) -> int:
        """Arrivals that are sorted by length together before packing; 0: none, in arrival order."""
        ...

    @property
    def frozen(self) -> bool:
        """Keep the first epoch's composition in every epoch, rather than compose anew from seeds.data."""
        ...


@dataclass(frozen=True)
class TokenBudget:
    """Batches of as many sequences as fit, counted with their padding."""

    budget_tokens: int
    """Padded tokens a batch may hold: sequences x longest."""
    pool: int
    """Arrivals that are sorted by length together before packing; 0: none, in arrival order."""
    max_sequences: int | None
    """Sequences a batch may hold; None: as many as the budget allows."""
    frozen: bool
    """Keep the first epoch's composition in every epoch, rather than compose anew from seeds.data."""

    def __post_init__(self) -> None:
        _check_at_least("budget_tokens", self.budget_tokens, 1, "give the padded tokens of one batch")
        _check_at_least("pool", self.pool, 0, "0 packs in arrival order")
        if self.max_sequences is not None:
            _check_at_least("max_sequences", self.max_sequences, 1, "give null for no limit")


@dataclass(frozen=True)
class FixedSize:
    """Batches of a fixed number of sequences, whatever their lengths; a bucket's last one holds what remains."""

    n_sequences: int
    pool: int
    """Arrivals that are sorted by length together before they are cut; 0: none, in arrival order."""
    frozen: bool
    """Keep the first epoch's composition in every epoch, rather than compose anew from seeds.data."""

    def __post_init__(self) -> None:
        _check_at_least("n_sequences", self.n_sequences, 1, "give the sequences of one batch")
        _check_at_least("pool", self.pool, 0, "0 cuts in arrival order")

    @property
    def budget_tokens(self) -> None:
        """No budget."""
        return None

    @property
    def max_sequences(self) -> int:
        """All of them."""
        return self.n_sequences


def _check_at_least(name: str, value: int, least: int, mend: str) -> None:
    if value < least:
        raise ValueError(f"batches.{name} must be >= {least}, got {value}; {mend}")


def check_holds(batching: Batching, longest_tokens: int) -> None:
    """Raise ValueError where a single sequence of `longest_tokens` would exceed the budget."""
    if batching.budget_tokens is not None and longest_tokens > batching.budget_tokens:
        raise ValueError(
            f"batches.budget_tokens must hold one sequence: the longest is {longest_tokens} tokens, the budget is "
            f"{batching.budget_tokens}; raise batches.budget_tokens or lower data.max_tokens"
        )


@dataclass(frozen=True)
class Batches:
    """An epoch's batches in canonical order: bucket by bucket, each in the order of packing. No strategy in it."""

    sequences: np.ndarray
    """int [S], every sequence once, batch after batch."""
    starts: np.ndarray
    """int64 [N + 1], where each batch begins in `sequences`, and the end of the last."""
    counts: np.ndarray
    """int64 [K], batches per bucket."""

    @cached_property
    def first(self) -> np.ndarray:
        """The canonical number of each bucket's first batch, int64 [K]."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def bucket(self) -> np.ndarray:
        """The bucket of each batch, int32 [N]."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    @property
    def sizes(self) -> np.ndarray:
        """Sequences per batch, int64 [N]."""
        return np.diff(self.starts)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Each batch's sum of a per-sequence value [S], in canonical order [N]; whole numbers sum as int64."""
        dtype = np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64
        return np.add.reduceat(values[self.sequences], self.starts[:-1], dtype=dtype)

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """Each batch's longest sequence in tokens [N], for lengths [S]."""
        return np.maximum.reduceat(lengths[self.sequences], self.starts[:-1])


def compose(
    lengths: np.ndarray, bucket: np.ndarray, n_buckets: int, batching: Batching, rng: np.random.Generator
) -> Batches:
    """All buckets' batches, from lengths int [S] and the bucket of each sequence int [S]; `rng` draws the arrival.

    A sequence over the budget is a batch of its own: `check_holds` refuses it.
    """
    build = compose_plainly if len(lengths) < COMPILED_FROM else compose_compiled
    return build(lengths, bucket, n_buckets, batching, rng)


def compose_plainly(
    lengths: np.ndarray, bucket: np.ndarray, n_buckets: int, batching: Batching, rng: np.random.Generator
) -> Batches:
    """`compose` without a compiler: numpy, and a loop over the sequences."""
    arrival = rng.permutation(len(lengths))
    sequences = arrival[np.argsort(bucket[arrival], kind="stable")]
    ends = np.cumsum(np.bincount(bucket, minlength=n_buckets))
    if batching.pool:
        sequences = sequences[pools_sorted(lengths[sequences], ends, batching.pool)]
    arrived = lengths[sequences]
    starts: list[int] = []
    counts = []
    for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        packed = pack_bucket(arrived[begin:end].tolist(), batching)
        starts.extend(begin + start for start in packed)
        counts.append(len(packed))
    starts.append(len(lengths))
    return Batches(sequences, np.array(starts, dtype=np.int64), np.array(counts, dtype=np.int64))


def compose_compiled(
    lengths: np.ndarray, bucket: np.ndarray, n_buckets: int, batching: Batching, rng: np.random.Generator
) -> Batches:
    """`compose` by kernels: another draw of the same law, cut by the same rules."""
    from dflash_exp.plan import packing  # imports numba

    sequences, arrived, ends = packing.arrive(lengths, bucket, n_buckets, rng)
    if batching.pool:
        packing.sort_pools(sequences, arrived, ends, batching.pool)
    starts = np.empty(len(lengths) + 1, dtype=np.int64)  # pages that are not written to take no memory
    counts = packing.pack(
        arrived, ends, batching.budget_tokens or UNLIMITED, batching.max_sequences or UNLIMITED, starts
    )
    n_batches = int(counts.sum())
    starts[n_batches] = len(lengths)
    starts.resize(n_batches + 1, refcheck=False)  # in place: gives the rest back without a copy
    return Batches(sequences, starts, counts)


def pools_sorted(arrived: np.ndarray, ends: np.ndarray, pool: int) -> np.ndarray:
    """Positions int64 [S] that sort every pool by length, for lengths [S] bucket by bucket and the buckets' ends [K].

    A bucket's pools ascend and descend in turn, so that a batch across two of them holds like lengths; equal lengths
    stay as they arrived.
    """
    sizes = np.diff(ends, prepend=0)
    place = np.arange(len(arrived)) - np.repeat(ends - sizes, sizes)
    number = place // pool
    signed = np.where(number % 2 == 0, arrived, -arrived.astype(np.int64))
    return np.lexsort((signed, number, np.repeat(np.arange(len(ends)), sizes)))


def pack_bucket(lengths: list[int], batching: Batching) -> list[int]:
    """Where each batch starts, for one bucket's lengths in the order of packing; the first starts at 0."""
    budget_tokens = batching.budget_tokens or UNLIMITED
    max_sequences = batching.max_sequences or UNLIMITED
    starts = [0] if lengths else []
    start = longest = 0
    for position, length in enumerate(lengths):
        if length > longest:
            longest = length
        n_sequences = position - start + 1
        if n_sequences > max_sequences or n_sequences * longest > budget_tokens:
            starts.append(position)
            start, longest = position, length
    return starts


def draw_batches(order: np.ndarray, batches: Batches, rng: np.random.Generator) -> np.ndarray:
    """The canonical number of the batch in each slot, int32 [N]: a bucket's batches come in a random order.

    Greedy packing leaves a bucket's short batch last; drawn in canonical order it would always end the epoch.
    """
    narrow = order.astype(np.min_scalar_type(max(0, len(batches.counts) - 1)))  # up to 16 bits sort by radix
    slots = np.argsort(narrow, kind="stable")
    drawn = np.empty(len(order), dtype=np.int32)
    for first, count in zip(batches.first.tolist(), batches.counts.tolist(), strict=True):
        own = np.arange(first, first + count, dtype=np.int32)
        rng.shuffle(own)
        drawn[slots[first : first + count]] = own
    return drawn
