"""The probe: held-out conversations with anchors that never change, measured between optimizer steps.

In: the probe split, the target, the drafter. Out: sums by length bucket (the training edges; what is longer than the
last edge counts in the last bucket). The target's features are computed once and kept where they fit (`kept.py`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from dflash_exp.data.store import Conversations
from dflash_exp.kept import KeptFeatures
from dflash_exp.messages import BatchPlan, LossSums, ShareOut, TargetFeatures, TokenBatch, total_by_bucket
from dflash_exp.plan.batches import Batching, compose
from dflash_exp.plan.buckets import assign_held_out
from dflash_exp.plan.seeds import named_rng


def probe_batches(
    conversations: Conversations, n_sequences: int, edges: np.ndarray, batching: Batching, seed: int
) -> list[BatchPlan]:
    """A seeded choice of probe sequences, packed by training bucket."""
    chosen = np.sort(named_rng("probe", seed, 0).permutation(conversations.rows)[:n_sequences])
    lengths = conversations.lengths[chosen]
    bucket = assign_held_out(lengths, edges)
    packed = compose(lengths, bucket, len(edges), batching, named_rng("probe", seed, 1))
    return [
        BatchPlan(
            i, 0, 0, int(b), i - int(packed.first[b]), chosen[packed.sequences[packed.starts[i] : packed.starts[i + 1]]]
        )
        for i, b in enumerate(packed.bucket)
    ]


class Probe:
    """Measures the drafter on the same blocks each time; touches no state."""

    def __init__(
        self, batches: list[TokenBatch], target: Callable[[TokenBatch], TargetFeatures],
        measure: Callable[[TargetFeatures], LossSums], share_out: ShareOut,
    ) -> None:  # fmt: skip
        self._batches = batches
        self._share_out = share_out
        self._target = target
        self._measure = measure
        self._kept = KeptFeatures()

    def __call__(self) -> dict[int, LossSums]:
        """Sums by bucket; every rank measures its share, and all know all."""
        measured = self.each(lambda features: astuple(self._measure(features)))
        return total_by_bucket((bucket, LossSums(*sums)) for bucket, sums in measured)

    def each(self, do: Callable[[TargetFeatures], Sequence[Any]]) -> list[tuple[int, Sequence[Any]]]:
        """What `do` makes of each batch, with its bucket; every rank does its share, and all know all."""
        done = self._share_out(len(self._batches), lambda i: do(self._features(i)))
        return [(batch.plan.bucket, one) for batch, one in zip(self._batches, done, strict=True)]

    def sha256(self) -> str:
        """Of the sequences and anchors that are measured."""
        digest = hashlib.sha256()
        for batch in self._batches:
            for values in (torch.from_numpy(batch.plan.sequence_rows), batch.anchor_row_A, batch.anchor_position_A):
                digest.update(values.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def _features(self, i: int) -> TargetFeatures:
        batch = self._batches[i]
        return TargetFeatures(batch, self._kept.get(i, lambda: self._target(batch).features_PF))
