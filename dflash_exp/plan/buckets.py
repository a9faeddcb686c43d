"""Lengths to edges, lengths to bucket.

A bucket is an index into ascending upper bounds in tokens: bucket b holds the lengths in (edge[b-1], edge[b]],
the first from 0. Of six buckets over lognormal lengths (median 1600, p99 8192, 16k tokens a batch) the longest holds
43 % of the batches with equal counts (`Quantile`), 16 % with equal tokens (`EqualTokens`), 15 % with the least
padding (`Optimal`); padded to the edges they waste 29, 20.4 and 19.7 %. Edges stated by hand (`Fixed`) stay the same
when the corpus changes.
"""

# S sequences, K buckets, M candidate edges

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

CHUNK = 2**16
"""Sequences that are looked up at a time: numpy's indices of 8 bytes a sequence stay in the cache, and small."""


class Buckets(Protocol):
    """How the edges are chosen: a frozen dataclass with one method."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """Edges in tokens, int64 [K], strictly ascending, for lengths int [S]; none of them exceeds the last."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Edges stated by hand; a bucket may stay empty."""

    edges: list[int]
    """Upper bounds in tokens, strictly ascending."""

    def __post_init__(self) -> None:
        if not self.edges or self.edges[0] < 1 or any(np.diff(self.edges) < 1):
            raise ValueError(
                f"buckets.edges must be positive and strictly ascending, got {list(self.edges)}; "
                "sort them, drop what repeats, and give at least one"
            )

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The given edges; raises ValueError where they do not cover the longest sequence."""
        longest = int(lengths.max())
        if longest > self.edges[-1]:
            raise ValueError(
                f"buckets.edges must cover the longest sequence: the longest is {longest} tokens, the last edge is "
                f"{self.edges[-1]}; append an edge of {longest} or more, or lower data.max_tokens"
            )
        return np.array(self.edges, dtype=np.int64)


@dataclass(frozen=True)
class Quantile:
    """Buckets of equal numbers of sequences; edges that coincide are merged, so there may be fewer."""

    n_buckets: int

    def __post_init__(self) -> None:
        _check_at_least_one("n_buckets", self.n_buckets, "use 1 for a single bucket")

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The lengths at shares 1/n, 2/n, ... 1 of the sorted sequences, each a length that occurs."""
        distinct, held = occurring(lengths)
        return distinct[_reached(held, self.n_buckets)]


@dataclass(frozen=True)
class EqualTokens:
    """Buckets of equal numbers of tokens; edges that coincide are merged, so there may be fewer."""

    n_buckets: int

    def __post_init__(self) -> None:
        _check_at_least_one("n_buckets", self.n_buckets, "use 1 for a single bucket")

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The least lengths up to which shares 1/n, 2/n, ... 1 of all tokens lie, each a length that occurs."""
        distinct, held = occurring(lengths)
        return distinct[_reached(distinct * held, self.n_buckets)]


@dataclass(frozen=True)
class Optimal:
    """The edges on a grid with the fewest tokens when every sequence is padded to its bucket's edge.

    As many as asked for, unless the lengths occupy fewer cells of the grid; no bucket is empty.
    """

    n_buckets: int
    grid_tokens: int
    """Edges are multiples of it: 1 finds the optimum of all edges; 8 pads .01 % more and is found 10 times faster."""

    def __post_init__(self) -> None:
        _check_at_least_one("n_buckets", self.n_buckets, "use 1 for a single bucket")
        _check_at_least_one("grid_tokens", self.grid_tokens, "8 suits kernels, 1 allows every edge")

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """Multiples of the grid, the last of them the longest length rounded up."""
        distinct, held = occurring(lengths)
        cells, first = np.unique(-(-distinct // self.grid_tokens), return_index=True)
        edges, held = cells * self.grid_tokens, np.add.reduceat(held, first)
        return edges[least_padded(edges, held, min(self.n_buckets, len(edges)))]


@dataclass(frozen=True)
class Single:
    """One bucket for all: the baseline without length buckets."""

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The longest length alone."""
        return np.array([lengths.max()], dtype=np.int64)


def occurring(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths that occur, ascending, and the sequences of each: int64, counted and not sorted."""
    held = np.zeros(int(lengths.max()) + 1, dtype=np.int64)
    for begin in range(0, len(lengths), CHUNK):
        held += np.bincount(lengths[begin : begin + CHUNK], minlength=len(held))
    distinct = np.flatnonzero(held)
    return distinct, held[distinct]


def _reached(amounts: np.ndarray, n_shares: int) -> np.ndarray:
    """The places at which shares 1/n, 2/n, ... 1 of the sum are reached, each once."""
    reached = np.cumsum(amounts, dtype=np.int64)
    shares = np.arange(1, n_shares + 1, dtype=np.int64)
    return np.unique(np.searchsorted(reached * n_shares, shares * reached[-1]))


def least_padded(edges: np.ndarray, held: np.ndarray, n_buckets: int) -> np.ndarray:
    """Which K of M ascending candidate edges to keep, the last one included, for the least padded tokens: int64 [K].

    `held` is the sequences of each candidate, int64 [M]. Dynamic programming: the least tokens of the first j
    candidates in k buckets is the minimum over i < j of that of the first i in k - 1 buckets and of the sequences
    between, padded to edge j. Exact, in whole numbers; 10 ms for 1024 candidates and 6 buckets, 1.5 s for 16,384.
    """
    below = np.concatenate(([0], np.cumsum(held)))
    least_KM = np.full((n_buckets + 1, len(edges) + 1), 2**61, dtype=np.int64)  # what cannot be
    least_KM[0, 0] = 0
    split_KM = np.zeros_like(least_KM)
    for j, edge in enumerate(edges.tolist(), start=1):
        padded_KM = least_KM[:-1, :j] + (below[j] - below[:j]) * edge
        split_KM[1:, j] = padded_KM.argmin(axis=1)
        least_KM[1:, j] = np.minimum(padded_KM.min(axis=1), 2**61)
    kept = [len(edges)]
    for k in range(n_buckets, 1, -1):
        kept.append(int(split_KM[k, kept[-1]]))
    return np.array(kept[::-1]) - 1


def assign(lengths: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bucket of each sequence, the narrowest unsigned int [S], for lengths that the last of `edges` covers."""
    bucket_of = np.searchsorted(edges, np.arange(int(lengths.max()) + 1), side="left")
    bucket_of = bucket_of.astype(np.min_scalar_type(len(edges) - 1))
    bucket = np.empty(len(lengths), dtype=bucket_of.dtype)
    for begin in range(0, len(lengths), CHUNK):
        part = slice(begin, begin + CHUNK)
        np.take(bucket_of, lengths[part], out=bucket[part], mode="clip")  # none is out of bounds, and it saves a check
    return bucket


def assign_held_out(lengths: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bucket of each held-out sequence, int32 [S]: what is longer than the last edge counts in the last bucket."""
    return np.minimum(np.searchsorted(edges, lengths), len(edges) - 1).astype(np.int32)


def _check_at_least_one(name: str, value: int, mend: str) -> None:
    if value < 1:
        raise ValueError(f"buckets.{name} must be >= 1, got {value}; {mend}")
