"""An order drawn at random that stays within a bound: the loop of quota_random, compiled.

Every batch has a release and a deadline (`kernels.window`). slack(T) is the number of slots up to T that are left once
all batches due by T have one; a batch may be drawn while no T before its own deadline has slack 0. A tree over the
slots finds the first such T in O(log N): a leaf holds what its slot adds to the slack, a node the sum of its leaves
and the lowest of their running sums: 16 to 32 bytes a batch. Import this, like `kernels`, inside a function.
"""

# N batches, K buckets; t and T are ends of slots, 1 .. N

from __future__ import annotations

import numpy as np
from numba import njit

from dflash_exp.plan.kernels import holder, window

PASSED = 2**30
"""The lowest running sum of slots that no longer count: higher than any slack."""


@njit(cache=True)
def drawn_within(counts: np.ndarray, bound: int, chances: np.ndarray, no_repeat: bool) -> np.ndarray:
    """Buckets int32 [N], drawn with one chance in [0, 1) a slot among those allowed, each with counts[b] tickets.

    `bound` is in 1/N batches, and some order must be able to keep to it. With `no_repeat` the last bucket draws no
    ticket unless only it is allowed.
    """
    n_batches = len(chances)
    order = np.empty(n_batches, dtype=np.int32)
    gain, lowest = slack_tree(counts, n_batches, bound)
    leaves = len(gain) // 2
    drawn, release, due = np.zeros_like(counts), np.empty_like(counts), np.empty_like(counts)
    for bucket in range(len(counts)):
        release[bucket], due[bucket] = window(1, counts[bucket], n_batches, bound)
    tickets = np.zeros_like(counts)
    last = -1
    for t in range(1, n_batches + 1):
        tight = first_without_slack(gain, lowest)
        n_tickets = deal(counts, release, due, t, tight, last if no_repeat else -1, tickets)
        assert n_tickets > 0, "where a bound can be kept to, some bucket may always come"
        last = holder(tickets, int(chances[t - 1] * n_tickets))
        order[t - 1] = last
        add_slack(gain, lowest, leaves + due[last] - 1)
        pass_slot(gain, lowest, leaves + t - 1)
        drawn[last] += 1
        release[last], due[last] = window(drawn[last] + 1, counts[last], n_batches, bound)
    return order


@njit(cache=True)
def deal(
    counts: np.ndarray, release: np.ndarray, due: np.ndarray, t: int, tight: int, barred: int, tickets: np.ndarray
) -> int:
    """Give tickets int64 [K] to the buckets that may come at t, to a barred one where no other may; return how many."""
    total = 0
    for bucket in range(len(counts)):
        tickets[bucket] = counts[bucket] if release[bucket] <= t and due[bucket] <= tight else 0
        total += tickets[bucket]
    if barred >= 0 and tickets[barred] < total:
        total -= tickets[barred]
        tickets[barred] = 0
    return total


@njit(cache=True)
def slack_tree(counts: np.ndarray, n_batches: int, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and lowest running sums, int32 [2 x leaves], before the first slot; node i has children 2i and 2i + 1."""
    leaves = 1
    while leaves < n_batches:
        leaves *= 2
    gain, lowest = np.zeros(2 * leaves, dtype=np.int32), np.full(2 * leaves, PASSED, dtype=np.int32)
    for leaf in range(leaves, leaves + n_batches):
        gain[leaf] = 1
    for bucket in range(len(counts)):
        for j in range(1, counts[bucket] + 1):
            gain[leaves + window(j, counts[bucket], n_batches, bound)[1] - 1] -= 1
    for leaf in range(leaves, leaves + n_batches):
        lowest[leaf] = gain[leaf]
    for node in range(leaves - 1, 0, -1):
        join(gain, lowest, node)
    return gain, lowest


@njit(cache=True)
def add_slack(gain: np.ndarray, lowest: np.ndarray, leaf: int) -> None:
    """A batch due at that leaf's slot has been drawn: one slot more is left for the others due by then."""
    gain[leaf] += 1
    lowest[leaf] += 1
    join_above(gain, lowest, leaf)


@njit(cache=True)
def pass_slot(gain: np.ndarray, lowest: np.ndarray, leaf: int) -> None:
    """That leaf's slot is used up: it counts no longer."""
    gain[leaf], lowest[leaf] = 0, PASSED
    join_above(gain, lowest, leaf)


@njit(cache=True)
def join_above(gain: np.ndarray, lowest: np.ndarray, leaf: int) -> None:
    """Mend all nodes above a leaf that has changed."""
    node = leaf // 2
    while node > 0:
        join(gain, lowest, node)
        node //= 2


@njit(cache=True)
def join(gain: np.ndarray, lowest: np.ndarray, node: int) -> None:
    """Make a node's figures those of its two children."""
    left, right = 2 * node, 2 * node + 1
    gain[node] = gain[left] + gain[right]
    lowest[node] = min(lowest[left], gain[left] + lowest[right])


@njit(cache=True)
def first_without_slack(gain: np.ndarray, lowest: np.ndarray) -> int:
    """The first T of those that count with slack 0; the last slot always is one: all batches are due by then."""
    node, before = 1, 0
    while node < len(gain) // 2:
        left = 2 * node
        if before + lowest[left] <= 0:
            node = left
        else:
            before += gain[left]
            node = left + 1
    return node - len(gain) // 2 + 1
