"""A corpus of made-up lengths, and an epoch of it: what the plan's figures are measured on."""

# S sequences

import math

import numpy as np

from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Quantile
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings
from dflash_exp.plan.interleave import StrideJitter
from dflash_exp.plan.seeds import Seeds, named_rng
from dflash_exp.plan.sequences import Sequences

MEDIAN_TOKENS, P99_TOKENS = 1600, 8192
SHORTEST_TOKENS, LONGEST_TOKENS = 16, 8192
N_RANKS, BATCHES_PER_RANK = 8, 4
SETTINGS = PlanSettings(
    Quantile(6),
    TokenBudget(16_384, pool=0, max_sequences=None, frozen=False),
    StrideJitter(1.0),
    N_RANKS * BATCHES_PER_RANK,
    Seeds(0, 0, 0, 0),
)
"""16k tokens a batch, eight ranks with four batches each."""
CHUNK = 2**22
"""Lengths drawn at a time, so that their making takes less memory than what is measured."""


def made_up_lengths(n_sequences: int) -> np.ndarray:
    """Lognormal, in tokens, cut at both ends: int32 [S], the same at every call."""
    rng = named_rng("bench", 0, 0)
    spread = math.log(P99_TOKENS / MEDIAN_TOKENS) / 2.3263  # the 99th percentile of a normal variable
    lengths = np.empty(n_sequences, dtype=np.int32)
    for begin in range(0, n_sequences, CHUNK):
        part = lengths[begin : begin + CHUNK]
        drawn = np.exp(rng.normal(math.log(MEDIAN_TOKENS), spread, len(part)))
        part[:] = drawn.clip(SHORTEST_TOKENS, LONGEST_TOKENS)
    return lengths


def build_epoch(lengths: np.ndarray) -> EpochPlan:
    """Lengths int [S] -> edges, buckets, a uniform order inside each, batches, order: the first epoch's arrays."""
    rows = np.arange(len(lengths), dtype=np.int32)
    return Planner(Sequences(lengths, rows), SETTINGS).epoch(0)
