"""Lengths to edges, lengths to bucket.

A bucket is an index into ascending upper bounds in tokens: bucket b holds the lengths in (edge[b-1], edge[b]],
the first from 0. Equal-count edges (`Quantile`) need no knowledge of the corpus, but put 42 % of the batches
into the longest of six buckets; edges stated by hand (`Fixed`) stay the same when the corpus changes.
"""

# S sequences, K buckets

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np


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
        if self.n_buckets < 1:
            raise ValueError(f"buckets.n_buckets must be >= 1, got {self.n_buckets}; use 1 for a single bucket")

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The lengths at shares 1/n, 2/n, ... 1 of the sorted sequences, each a length that occurs."""
        shares = np.arange(1, self.n_buckets + 1, dtype=np.int64)
        ranks = -(-shares * len(lengths) // self.n_buckets) - 1
        return np.unique(np.sort(lengths)[ranks]).astype(np.int64)


@dataclass(frozen=True)
class Single:
    """One bucket for all: the baseline without length buckets."""

    def upper_bounds(self, lengths: np.ndarray) -> np.ndarray:
        """The longest length alone."""
        return np.array([lengths.max()], dtype=np.int64)


def assign(lengths: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bucket of each sequence, int32 [S], for lengths int [S] that the last of `edges` covers."""
    return np.searchsorted(edges, lengths, side="left").astype(np.int32)
