"""Batches to what they cost the two stages: the target's forward, the drafter's forward and backward.

The token budget bounds the target, not the drafter: short buckets hold many sequences, so many anchors. Hence two
costs, each linear in what is known of a batch before anybody trains on it:

    target  = a + b padded_tokens + c sum(length^2)
    drafter = d + e slots + f sum(anchors x length) + g tokens

The coefficients come from counting operations (`counted_costs`) or from a run's own records (`fit_costs`). Sums are
in whole numbers and costs are put together term by term, so every rank finds the same bits, and so the same deal.
"""

# N batches, R records, S sequences

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from dflash_exp.plan.batches import Batches
from dflash_exp.plan.epoch import EpochPlan


@dataclass(frozen=True)
class StageCosts:
    """The coefficients, in any unit that both stages share: seconds, or FLOP. Raises ValueError below 0 and for nan."""

    target_batch: float
    """a, of a batch whatever it holds."""
    target_padded_token: float
    """b, of a token of the rectangle."""
    target_square: float
    """c, of a squared token of a sequence's length: attention."""
    drafter_batch: float
    """d, of a batch whatever it holds."""
    drafter_slot: float
    """e, of one of the block_size slots of an anchor: layers and head."""
    drafter_anchor_token: float
    """f, of an anchor and a token of its sequence: attention to the context."""
    drafter_token: float
    """g, of a real token: the features' projection to keys and values."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"costs.{name} must be >= 0, got {value}; 0 leaves the term out")


@dataclass(frozen=True, eq=False)
class Work:
    """What a batch asks of the two stages, or the sum over several: each int64 [N]. The costs are linear in it."""

    batches: np.ndarray
    padded_tokens: np.ndarray
    squares: np.ndarray
    """sum(length^2)."""
    slots: np.ndarray
    """Anchors x block_size."""
    anchor_tokens: np.ndarray
    """sum(anchors x length)."""
    tokens: np.ndarray


def batch_work(batches: Batches, lengths: np.ndarray, anchors: np.ndarray, block_size: int) -> Work:
    """Each batch's work in canonical order, for lengths and anchors int [S]."""
    wide = lengths.astype(np.int64)
    return Work(
        batches=np.ones(len(batches.sizes), dtype=np.int64),
        padded_tokens=batches.longest(lengths).astype(np.int64) * batches.sizes,
        squares=batches.sums(wide * wide),
        slots=batches.sums(anchors) * block_size,
        anchor_tokens=batches.sums(anchors * wide),
        tokens=batches.sums(lengths),
    )


def plan_work(plan: EpochPlan, block_size: int) -> Work:
    """Each batch's work in canonical order, of an epoch whose plan counts anchors, as that of data does."""
    sequences = plan.sequences
    assert sequences.anchors is not None, "a plan of data counts anchors"
    return batch_work(plan.batches, sequences.lengths, sequences.anchors, block_size)


def stage_costs(work: Work, costs: StageCosts) -> tuple[np.ndarray, np.ndarray]:
    """(target, drafter), float64 [N] each: a batch's cost in both stages, in the order of `work`."""
    target = costs.target_batch * work.batches + costs.target_padded_token * work.padded_tokens
    target += costs.target_square * work.squares
    drafter = costs.drafter_batch * work.batches + costs.drafter_slot * work.slots
    drafter += costs.drafter_anchor_token * work.anchor_tokens
    drafter += costs.drafter_token * work.tokens
    return target, drafter


def in_steps(work: Work, drawn: np.ndarray, bounds: np.ndarray) -> Work:
    """Each step's work, summed over its batches: `drawn` int [N] is the order of training, `bounds` the steps in it."""
    return Work(*(np.add.reduceat(term[drawn], bounds[:-1]) for term in vars(work).values()))


def joined(parts: list[Work]) -> Work:
    """The work of one part after the other, at least one."""
    return Work(*(np.concatenate(terms) for terms in zip(*(vars(part).values() for part in parts), strict=True)))


def batch_costs(
    batches: Batches, lengths: np.ndarray, anchors: np.ndarray, block_size: int, costs: StageCosts
) -> tuple[np.ndarray, np.ndarray]:
    """(target, drafter), float64 [N] each: what each batch costs both stages, in canonical order."""
    return stage_costs(batch_work(batches, lengths, anchors, block_size), costs)


def slower_stage(target: np.ndarray, drafter: np.ndarray) -> np.ndarray:
    """The costs of the stage with the larger sum: what an aligner balances. Divide a stage's by its workers first."""
    return target if target.sum() > drafter.sum() else drafter


def fit_costs(work: Work, target_s: np.ndarray, drafter_s: np.ndarray) -> StageCosts:
    """The coefficients >= 0, in seconds, with the least squared error over records: summed work and busy seconds [R].

    Where terms vary together (a budget fills every batch alike) their split is arbitrary and their sum is not.
    """
    target = _least_squares([work.batches, work.padded_tokens, work.squares], target_s)
    drafter = _least_squares([work.batches, work.slots, work.anchor_tokens, work.tokens], drafter_s)
    return StageCosts(*target, *drafter)


def _least_squares(terms: list[np.ndarray], seconds: np.ndarray) -> list[float]:
    """Non-negative coefficients, one for each term [R]."""
    from scipy.optimize import nnls  # .3 s, and only here

    matrix = np.stack(terms, axis=1).astype(np.float64)
    scale = np.maximum(matrix.max(axis=0), 1.0)  # squares are millions of times larger than batches
    solution, _ = nnls(matrix / scale, seconds.astype(np.float64))
    return (solution / scale).tolist()


class Sizes(Protocol):
    """Of a decoder; the drafter has its target's."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def counted_costs(
    sizes: Sizes, n_target_layers: int, n_drafter_layers: int, n_taps: int, block_size: int
) -> StageCosts:
    """The coefficients in FLOP, before any run: two a multiply-add, backward twice the forward.

    `n_target_layers` are those up to the deepest tap. Causal attention sees half of the square, an anchor half of its
    sequence; the frozen head has no weight gradient. Time per FLOP is taken to be that of every other FLOP, which a
    fit does not.
    """
    queries, keys = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    hidden = sizes.hidden_size
    layer = 2 * hidden * (2 * queries + 2 * keys + 3 * sizes.intermediate_size)
    head = 2 * hidden * sizes.vocab_size * (block_size - 1) / block_size
    into_keys = 2 * hidden * 2 * keys
    return StageCosts(
        target_batch=0.0,
        target_padded_token=float(n_target_layers * layer),
        target_square=float(n_target_layers * 2 * queries),
        drafter_batch=0.0,
        drafter_slot=float(3 * n_drafter_layers * layer + 2 * head),
        drafter_anchor_token=float(3 * n_drafter_layers * 2 * queries * block_size),
        drafter_token=float(2 * 2 * n_taps * hidden * hidden + 3 * n_drafter_layers * into_keys),
    )
