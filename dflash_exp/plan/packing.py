"""Arrival, pools and packing, compiled: what `batches.py` says, for 100 million sequences.

An exactly uniform order inside every bucket after Rao and Sandelius: each sequence is scattered into one of its
bucket's bins by a hash of its own, then each bin, small enough for the cache, is shuffled (Fisher-Yates). Lengths
travel with the ids as 16 bits, so that packing reads in sequence. 100 million sequences on one core: 3 s to shuffle,
1.2 to sort pools of 256, .4 to pack; numpy takes 8 s to shuffle the ids alone. Importing this module imports numba
(.4 s); its kernels compile once (3 s) and are cached: import it inside the function that needs it.
"""

# S sequences, K buckets, N batches

from __future__ import annotations

import numpy as np
from numba import njit

from dflash_exp.plan.compiling import listen

listen()  # here, where numba has been imported anyway

BIN_SEQUENCES = 2**15
"""A bin holds about half as many to as many: 200 KB of ids and lengths."""

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE, _27, _30, _31, _32, _63 = (np.uint64(n) for n in (1, 27, 30, 31, 32, 63))
_LOW_32 = np.uint64(2**32 - 1)


def arrive(
    lengths: np.ndarray, bucket: np.ndarray, n_buckets: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bucket after bucket, each in a uniform order: ids int [S], their lengths uint16 or int32 [S], ends int64 [K]."""
    lengths = lengths.astype(np.int32, copy=False)
    bucket = bucket.astype(np.uint8 if n_buckets <= 256 else np.int32, copy=False)
    held = count(bucket, n_buckets)
    bits = np.array([(n // BIN_SEQUENCES).bit_length() for n in held.tolist()], dtype=np.uint64)
    first_bin = np.concatenate(([0], np.cumsum(2 ** bits.astype(np.int64))))
    sequences = np.empty(len(lengths), dtype=np.int32 if len(lengths) < 2**31 else np.int64)
    arrived = np.empty(len(lengths), dtype=np.uint16 if lengths.max() < 2**16 else np.int32)
    scatter_key, shuffle_key = rng.integers(0, 2**64, size=2, dtype=np.uint64)
    bin_ends = scatter(lengths, bucket, scatter_key, bits, first_bin, sequences, arrived)
    shuffle_bins(sequences, arrived, bin_ends, shuffle_key)
    return sequences, arrived, np.cumsum(held)


@njit(cache=True)
def hashed(key: np.uint64, position: int) -> np.uint64:
    """SplitMix64's number at that position of the stream of `key`, uint64."""
    z = key + np.uint64(position) * _GOLDEN_GAMMA
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@njit(cache=True)
def count(bucket: np.ndarray, n_buckets: int) -> np.ndarray:
    """Sequences per bucket, int64 [K]."""
    held = np.zeros(n_buckets, np.int64)
    for b in bucket:
        held[b] += 1
    return held


@njit(cache=True)
def scatter(
    lengths: np.ndarray,
    bucket: np.ndarray,
    key: np.uint64,
    bits: np.ndarray,
    first_bin: np.ndarray,
    sequences: np.ndarray,
    arrived: np.ndarray,
) -> np.ndarray:
    """Write each id and length into a bin of its bucket, 2**bits[b] equally likely ones; returns the bins' ends."""
    begins = np.zeros(first_bin[-1] + 1, np.int64)
    for i in range(len(lengths)):
        b = bucket[i]
        begins[first_bin[b] + np.int64((hashed(key, i) >> _ONE) >> (_63 - bits[b])) + 1] += 1
    for place in range(1, len(begins)):
        begins[place] += begins[place - 1]
    for i in range(len(lengths)):
        b = bucket[i]
        place = first_bin[b] + np.int64((hashed(key, i) >> _ONE) >> (_63 - bits[b]))
        free = begins[place]
        sequences[free] = i
        arrived[free] = lengths[i]
        begins[place] = free + 1
    return begins[:-1]


@njit(cache=True)
def shuffle_bins(sequences: np.ndarray, arrived: np.ndarray, bin_ends: np.ndarray, key: np.uint64) -> None:
    """Fisher-Yates inside each bin, ids and lengths alike; bounded draws after Lemire, without bias."""
    drawn = 0
    begin = 0
    for end in bin_ends:
        for last in range(end - 1, begin, -1):
            choices = np.uint64(last - begin + 1)
            product = (hashed(key, drawn) >> _32) * choices
            drawn += 1
            while (product & _LOW_32) < choices and (product & _LOW_32) < (_LOW_32 - choices + _ONE) % choices:
                product = (hashed(key, drawn) >> _32) * choices
                drawn += 1
            other = begin + np.int64(product >> _32)
            sequences[last], sequences[other] = sequences[other], sequences[last]
            arrived[last], arrived[other] = arrived[other], arrived[last]
        begin = end


@njit(cache=True)
def sort_pools(sequences: np.ndarray, arrived: np.ndarray, ends: np.ndarray, pool: int) -> None:
    """Sort each pool of a bucket by length, in place: up, down, up, ..., equal lengths as they
    arrived (`batches.pools_sorted`).

    Two passes of 8 bits, four for lengths of 32: 9 ns a sequence, where a sort by comparison takes 45.
    """
    spare_sequences = np.empty(min(pool, len(sequences)), sequences.dtype)
    spare_arrived = np.empty(len(spare_sequences), arrived.dtype)
    begin = 0
    for end in ends:
        flip = 0
        for first in range(begin, end, pool):
            last = min(first + pool, end)
            ids, lengths = sequences[first:last], arrived[first:last]
            for shift in range(0, 8 * arrived.itemsize, 16):
                sort_by_digit(ids, lengths, spare_sequences, spare_arrived, shift, flip)
                sort_by_digit(spare_sequences[: last - first], spare_arrived, ids, lengths, shift + 8, flip)
            flip ^= 255
        begin = end


@njit(cache=True)
def sort_by_digit(
    ids: np.ndarray, lengths: np.ndarray, into_ids: np.ndarray, into_lengths: np.ndarray, shift: int, flip: int
) -> None:
    """A stable counting sort by 8 bits of the lengths from `shift` up; `flip` 255 sorts them down."""
    begins = np.zeros(257, np.int64)
    for i in range(len(ids)):
        begins[((np.int64(lengths[i]) >> shift & 255) ^ flip) + 1] += 1
    for digit in range(1, 257):
        begins[digit] += begins[digit - 1]
    for i in range(len(ids)):
        digit = (np.int64(lengths[i]) >> shift & 255) ^ flip
        into_ids[begins[digit]] = ids[i]
        into_lengths[begins[digit]] = lengths[i]
        begins[digit] += 1


@njit(cache=True)
def pack(
    arrived: np.ndarray, ends: np.ndarray, budget_tokens: int, max_sequences: int, starts: np.ndarray
) -> np.ndarray:
    """Write where each batch starts; returns the batches per bucket, int64 [K]. The rule is `batches.pack_bucket`'s."""
    counts = np.zeros(len(ends), np.int64)
    n_batches = 0
    begin = 0
    for b in range(len(ends)):
        end = ends[b]
        start = begin
        longest = np.int64(0)
        for position in range(begin, end):
            length = np.int64(arrived[position])
            longest = max(longest, length)
            n_sequences = position - start + 1
            if position == begin or n_sequences > max_sequences or n_sequences * longest > budget_tokens:
                starts[n_batches] = start = position
                longest = length
                n_batches += 1
                counts[b] += 1
        begin = end
    return counts
