"""One bucket's sequences to batches under a token budget.

Sequences arrive in a random order of their own and are packed greedily: a batch is closed when one more sequence
would push its padded tokens (sequences x longest) over the budget. Nothing is dropped: a bucket's last batch is
kept however short. Packing in arrival order wastes about 14 % of the rectangle, and keeps the composition random.
The loop is plain Python: about 0.1 s for a million sequences, and no compiler to import for a few thousand.
"""

# S sequences, N batches, K buckets

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class TokenBudget:
    """Batches of as many sequences as fit, counted with their padding."""

    budget_tokens: int
    """Padded tokens a batch may hold: sequences x longest."""
    max_sequences: int | None
    """Sequences a batch may hold; None: as many as the budget allows."""
    frozen: bool
    """Keep the first epoch's composition in every epoch, rather than compose anew from seeds.data."""

    def __post_init__(self) -> None:
        if self.budget_tokens < 1:
            raise ValueError(
                f"batches.budget_tokens must be >= 1, got {self.budget_tokens}; give the padded tokens of one batch"
            )
        if self.max_sequences is not None and self.max_sequences < 1:
            raise ValueError(f"batches.max_sequences must be >= 1, got {self.max_sequences}; give null for no limit")

    def check_holds(self, longest_tokens: int) -> None:
        """Raise ValueError where a single sequence of `longest_tokens` would exceed the budget."""
        if longest_tokens > self.budget_tokens:
            raise ValueError(
                f"batches.budget_tokens must hold one sequence: the longest is {longest_tokens} tokens, the budget is "
                f"{self.budget_tokens}; raise batches.budget_tokens or lower data.max_tokens"
            )

    def pack(self, lengths: list[int]) -> list[int]:
        """Where each batch starts, for one bucket's lengths in arrival order; the first starts at 0."""
        budget_tokens = self.budget_tokens
        limit = len(lengths) if self.max_sequences is None else self.max_sequences
        starts = [0] if lengths else []
        start = longest = 0
        for position, length in enumerate(lengths):
            if length > longest:
                longest = length
            n_sequences = position - start + 1
            if n_sequences > limit or n_sequences * longest > budget_tokens:
                starts.append(position)
                start, longest = position, length
        return starts


@dataclass(frozen=True)
class Batches:
    """An epoch's batches in canonical order: bucket by bucket, each in the order of packing. No strategy in it."""

    sequences: np.ndarray
    """int64 [S], every sequence once, batch after batch."""
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
    lengths: np.ndarray, bucket: np.ndarray, n_buckets: int, budget: TokenBudget, rng: np.random.Generator
) -> Batches:
    """All buckets' batches, from lengths int [S] and the bucket of each sequence int [S]; `rng` draws the arrival."""
    arrival = rng.permutation(len(lengths))
    sequences = arrival[np.argsort(bucket[arrival], kind="stable")]
    arrived = lengths[sequences]
    ends = np.cumsum(np.bincount(bucket, minlength=n_buckets))
    starts: list[int] = []
    counts = []
    begin = 0
    for end in ends.tolist():
        packed = budget.pack(arrived[begin:end].tolist())
        starts.extend(begin + start for start in packed)
        counts.append(len(packed))
        begin = end
    starts.append(len(lengths))
    return Batches(sequences, np.array(starts, dtype=np.int64), np.array(counts, dtype=np.int64))


def draw_batches(order: np.ndarray, batches: Batches, rng: np.random.Generator) -> np.ndarray:
    """The canonical number of the batch in each slot, int64 [N]: a bucket's batches come in a random order.

    Greedy packing leaves a bucket's short batch last; drawn in canonical order it would always end the epoch.
    """
    turns = [begin + rng.permutation(count) for begin, count in zip(batches.first, batches.counts, strict=True)]
    drawn = np.empty(len(order), dtype=np.int64)
    drawn[np.argsort(order, kind="stable")] = np.concatenate(turns)
    return drawn
