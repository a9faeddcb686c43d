"""An order to the curves and shares that its figure shows, each with no more points than a picture has room for.

In: the order and its counts. Out: plain arrays. All are a few passes over the order, whatever the number of buckets:
10M batches take about 2 s, of which sorting by bucket is most.
"""

# N batches, K buckets, C columns, W windows

import numpy as np


def columns(n_batches: int, n_columns: int) -> np.ndarray:
    """Where each of `n_columns` <= N nearly equal stretches of the epoch begins, and the end: int64 [C + 1]."""
    return np.arange(n_columns + 1, dtype=np.int64) * n_batches // n_columns


def mix(order: np.ndarray, n_buckets: int, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Each bucket's share of the batches between begins and ends, int [C] each, none empty: float64 [K, C]."""
    lengths = ends - begins
    column = np.repeat(np.arange(len(begins)), lengths)
    slot = np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    drawn = np.bincount(column * n_buckets + order[slot], minlength=len(begins) * n_buckets)
    return drawn.reshape(len(begins), n_buckets).T / lengths


def relative_rate(order: np.ndarray, counts: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """How often each bucket is drawn between one bound and the next, int [C + 1], 1 = fair: float64 [K, C].

    An empty bucket has nan.
    """
    fair = np.where(counts > 0, counts / len(order), np.nan)
    return mix(order, len(counts), bounds[:-1], bounds[1:]) / fair[:, None]


def slots_by_bucket(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Where each bucket is drawn, ascending: K arrays of counts[b] slots."""
    return np.split(np.argsort(order, kind="stable"), np.cumsum(counts)[:-1])


def deviation(slots: np.ndarray, n_batches: int, n_pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many batches a bucket drawn at `slots` is ahead of its fair share: shares of the epoch, lowest, highest.

    The curve falls between draws and rises by one at each. Where there are more draws than `n_pieces`, each piece of
    the curve gives its lowest and its highest point, so that no extreme is lost; otherwise the two are the same.
    """
    drawn = np.arange(len(slots))
    fair = len(slots) / n_batches
    at = np.column_stack((slots, slots + 1)).ravel() / n_batches
    low = high = np.column_stack((drawn - fair * slots, drawn + 1 - fair * (slots + 1))).ravel()
    if len(slots) > n_pieces:
        begins = np.arange(n_pieces, dtype=np.int64) * len(at) // n_pieces
        at, low, high = at[begins], np.minimum.reduceat(low, begins), np.maximum.reduceat(high, begins)
    return np.append(np.append(0.0, at), 1.0), np.pad(low, 1), np.pad(high, 1)


def spread_windows(n_batches: int, window: int, at_most: int) -> tuple[np.ndarray, int]:
    """Where disjoint windows begin, the remainder dropped, and how far apart: each, or every other, third, ... one."""
    n_windows = n_batches // window
    every = -(-n_windows // at_most)
    return np.arange(0, n_windows, every, dtype=np.int64) * window, every * window


def share_by_run(run_lengths: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The share of all batches that lie in runs of up to 1, 2, 4, 8, ... batches, but more than the bound before.

    Out: the bounds, int64 up to the first that holds the longest run, and float64 shares beside them.
    """
    sizes = np.array(list(run_lengths), dtype=np.int64)
    batches = sizes * np.array(list(run_lengths.values()), dtype=np.int64)
    exponent = np.ceil(np.log2(sizes)).astype(np.int64)
    return 2 ** np.arange(exponent.max() + 1), np.bincount(exponent, weights=batches) / batches.sum()


def least_longest_run(counts: np.ndarray) -> int:
    """The longest run that no order of these counts avoids: the largest bucket over the gaps that the others leave."""
    largest = int(counts.max())
    return -(-largest // (int(counts.sum()) - largest + 1))
