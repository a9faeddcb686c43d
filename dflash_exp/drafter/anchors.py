"""Which positions a sequence is trained at: a pure hash of (seed, epoch, sequence id, position), numpy only.

In: a sequence's own unpadded supervision. Out: anchor positions, ascending, and the loss weight they are expected
to carry. Neither neighbours, batch, worker nor order enter, so two runs that differ in order alone draw the same
anchors on every platform. Paid for that: 160 us for 2000 candidates.
"""

# L tokens of one sequence, C candidates, A anchors

from __future__ import annotations

import numpy as np

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(state: np.ndarray) -> np.ndarray:
    """The output that Steele, Lea and Flood's SplitMix64 gives from `state`, element by element.

    uint64 in, uint64 out, any shape. The stream of seed s is splitmix64(s + i * 0x9E3779B97F4A7C15), i = 0, 1, ...
    Agrees with Vigna's splitmix64.c.
    """
    z = np.asarray(state, dtype=np.uint64) + _GOLDEN_GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def anchor_hash(seed: int, epoch: int, sequence_id: int, positions_C: np.ndarray) -> np.ndarray:
    """One uint64 per position: h = mix(seed), then h = mix(h ^ word) for the epoch, the sequence id, the position.

    Raises ValueError for a negative seed, epoch or id: they are read as 64 unsigned bits.
    """
    hashed = np.zeros(1, dtype=np.uint64)
    for name, word in (("seed", seed), ("epoch", epoch), ("sequence id", sequence_id)):
        if not 0 <= word < 2**64:
            raise ValueError(f"{name} must be in [0, 2**64), got {word}; use a whole number that is not negative")
        hashed = splitmix64(hashed ^ np.uint64(word))
    return splitmix64(hashed ^ np.asarray(positions_C).astype(np.uint64))


def candidates(supervised_L: np.ndarray) -> np.ndarray:
    """Positions a with supervised[a] and supervised[a+1], int64, ascending: the anchor and its first label count."""
    supervised_L = np.asarray(supervised_L, dtype=bool)
    return np.flatnonzero(supervised_L[:-1] & supervised_L[1:])


def choose_anchors(seed: int, epoch: int, sequence_id: int, candidates_C: np.ndarray, n_anchors: int) -> np.ndarray:
    """The min(n_anchors, C) candidates with the smallest hash, int64, ascending.

    Equal hashes (one pair in 2**64) go to the smaller position. Source: `anchor_hash`.
    """
    candidates_C = np.asarray(candidates_C, dtype=np.int64)
    if len(candidates_C) <= n_anchors:
        return candidates_C
    by_hash = np.argsort(anchor_hash(seed, epoch, sequence_id, candidates_C), kind="stable")
    return np.sort(candidates_C[by_hash[:n_anchors]])


def slot_decay(block_size: int, gamma: float) -> np.ndarray:
    """exp(-(k-1)/gamma) of slots k = 1..block_size-1, float64 (paper, section 4.2)."""
    return np.exp(-np.arange(block_size - 1) / gamma)


def expected_weight(supervised_L: np.ndarray, n_anchors: int, block_size: int, gamma: float) -> tuple[int, float]:
    """Anchors of one sequence in any epoch, and the loss weight they carry on average over epochs.

    Returns (n_chosen, n_chosen * mean block weight over all candidates): each candidate is equally likely, so this
    is the exact mean, and the plan knows an epoch's weight without drawing an anchor.
    """
    supervised_L = np.asarray(supervised_L, dtype=bool)
    positions_C = candidates(supervised_L)
    n_chosen = min(n_anchors, len(positions_C))
    if n_chosen == 0:
        return 0, 0.0
    ahead = np.concatenate([supervised_L, np.zeros(block_size, dtype=bool)]).astype(np.float64)
    block_weight_C = sum(w * ahead[positions_C + k] for k, w in enumerate(slot_decay(block_size, gamma), start=1))
    return n_chosen, n_chosen * float(np.mean(block_weight_C))
