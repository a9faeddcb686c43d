"""The strategies' loops over the slots of an epoch, compiled.

Whole numbers throughout: two buckets' fractions are compared by cross-products in int64, ties go to the lower index, so
an order is the same on every platform. Compiled at the first call on a machine (seconds, `compiling.announced` says
so) and kept on disk. Numba takes 0.4 s to import: import this module inside the function that needs it.
"""

# N batches, K buckets; t is a slot's end, so the first slot ends at 1 and the last at N; the j-th batch has j = 1 .. n

from __future__ import annotations

import numpy as np
from numba import njit

from dflash_exp.plan.compiling import listen

listen()  # here, where numba has been imported anyway

NEVER = 2**62
"""The release of a batch that a bucket does not have: later than any slot."""


@njit(cache=True)
def drawn_by_weight(counts: np.ndarray, chances: np.ndarray, fixed: bool, repeats: bool) -> np.ndarray:
    """Buckets int32 [N], drawn with one chance in [0, 1) a slot, each with as many tickets as its weight.

    The weight is what remains, or, `fixed`, counts[b] until nothing does. Without `repeats` the bucket drawn last has
    no tickets unless only it is left.
    """
    order = np.empty(len(chances), dtype=np.int32)
    remaining, tickets = counts.copy(), counts.copy()
    total = len(order)
    last, withheld = 0, 0
    for slot in range(len(order)):
        if total == 0:
            order[slot:] = last
            break
        drawn = holder(tickets, int(chances[slot] * total))
        order[slot] = drawn
        tickets[last] += withheld
        total += withheld
        remaining[drawn] -= 1
        lost = tickets[drawn] - remaining[drawn] if remaining[drawn] == 0 or not fixed else 0
        withheld = 0 if repeats else tickets[drawn] - lost
        tickets[drawn] -= lost + withheld
        total -= lost + withheld
        last = drawn
    return order


@njit(cache=True)
def holder(tickets: np.ndarray, ticket: int) -> int:
    """The bucket that holds the ticket when all line up, each with as many tickets as it has."""
    bucket = 0
    while ticket >= tickets[bucket]:
        ticket -= tickets[bucket]
        bucket += 1
    return bucket


@njit(cache=True)
def smallest_next(counts: np.ndarray, slope: int, start: int, lag: int) -> np.ndarray:
    """Buckets int32 [N]: every slot to the smallest (slope d + start) / n, d of the bucket's n batches being drawn.

    With `lag` > 0 only buckets are looked at that, at the slot's end, would be 1/lag of a batch behind or more.
    """
    n_batches = counts.sum()
    order = np.empty(n_batches, dtype=np.int32)
    value = np.full(len(counts), start, dtype=np.int64)
    behind = np.zeros(len(counts), dtype=np.int64)
    for slot in range(n_batches):
        first = -1
        for bucket in range(len(counts)):
            behind[bucket] += counts[bucket]
            if lag > 0 and lag * behind[bucket] < n_batches:
                continue
            if first < 0 or value[bucket] * counts[first] < value[first] * counts[bucket]:
                first = bucket
        order[slot] = first
        value[first] += slope
        behind[first] -= n_batches
    return order


@njit(cache=True)
def window(j: int, n: int, n_batches: int, bound: int) -> tuple[int, int]:
    """Release and deadline, ends of slots, of a bucket's j-th of n batches: in between it deviates by <= bound/N."""
    if j > n:
        return NEVER, NEVER
    release = -((bound - j * n_batches) // n)
    return release, min(n_batches, ((j - 1) * n_batches + bound) // n + 1)


@njit(cache=True)
def filled_by_deadline(counts: np.ndarray, bound: int, order: np.ndarray) -> bool:
    """Give every slot of `order` int32 [N] to the released batch due first; False, and an end, where one is late."""
    n_batches = len(order)
    drawn, release, due = np.zeros_like(counts), np.empty_like(counts), np.empty_like(counts)
    for bucket in range(len(counts)):
        release[bucket], due[bucket] = window(1, counts[bucket], n_batches, bound)
    for t in range(1, n_batches + 1):
        first, soonest = -1, NEVER
        for bucket in range(len(counts)):
            if release[bucket] <= t and due[bucket] < soonest:
                first, soonest = bucket, due[bucket]
        if first < 0 or soonest < t:
            return False
        order[t - 1] = first
        drawn[first] += 1
        release[first], due[first] = window(drawn[first] + 1, counts[first], n_batches, bound)
    return True


@njit(cache=True)
def smallest_bound(counts: np.ndarray) -> int:
    """The smallest deviation that an order of these counts (one batch or more) can keep to, in 1/N batches.

    Deviations are multiples of 1/N. The first batch alone brings N - max(counts), which often is the answer; N - 1
    always suffices. The search probes at a third, not at half: a bound too small shows early, so it costs less.
    """
    largest = 0
    for n in counts:
        largest = max(largest, n)
    order = np.empty(counts.sum(), dtype=np.int32)
    refused, kept = len(order) - largest - 1, len(order) - 1
    bound = refused + 1
    while kept - refused > 1:
        if filled_by_deadline(counts, bound, order):
            kept = bound
        else:
            refused = bound
        bound = refused + max(1, (kept - refused) // 3)
    return kept
