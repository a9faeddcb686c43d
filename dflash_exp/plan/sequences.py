"""What the plan knows of the store: the length and the id of every sequence, and what it weighs.

Ids and whole numbers, 12 bytes a sequence and 16 more with weights and anchors; never a token.
"""

# S sequences

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Sequences:
    """What the plan knows of the store. Raises ValueError on no sequences, an empty one, or arrays that disagree."""

    lengths: np.ndarray
    """int [S], tokens."""
    rows: np.ndarray
    """int [S], the store's row of each sequence: its id."""
    weights: np.ndarray | None = None
    """float64 [S], the expected weight of each sequence in the loss."""
    anchors: np.ndarray | None = None
    """int [S], anchors of each sequence in every epoch."""

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or len(self.lengths) == 0 or self.lengths.min() < 1:
            shortest = self.lengths.min() if self.lengths.size else "none"
            raise ValueError(
                "data.path must hold at least one sequence, each of one token or more: "
                f"got {self.lengths.size} sequences, the shortest {shortest}; prepare the store anew"
            )
        for name, values in (("rows", self.rows), ("weights", self.weights), ("anchors", self.anchors)):
            if values is not None and values.shape != self.lengths.shape:
                raise ValueError(
                    f"{name} must have one entry for each of the {len(self.lengths)} lengths, "
                    f"got shape {values.shape}; hand in arrays of the same sequences"
                )

    @cached_property
    def n_tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def lengths_sha256(self) -> str:
        """Hash of the lengths as little-endian int32."""
        return array_sha256(self.lengths.astype("<i4"))

    @cached_property
    def rows_sha256(self) -> str:
        """Hash of the rows as little-endian int64."""
        return array_sha256(self.rows.astype("<i8"))


def array_sha256(*arrays: np.ndarray) -> str:
    """Hash of the bytes of the arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
