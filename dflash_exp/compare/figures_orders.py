"""Figures of what the arms trained on, read off the records: shares of the buckets over time, strips of the order.

In: one run of each arm, of the same seed where there is one. Out: figures. The order is that of the steps that were
trained, so of a run that is still at work it is what it has done.
"""

# N batches, K buckets

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dflash_exp.compare import plan_shares
from dflash_exp.compare.drawing import bare, new_figure, stacked, titled
from dflash_exp.compare.plan_panels import FAINT, TOO_RARE_TO_TOO_OFTEN

STRIP_COLUMNS, EVERY_BATCH, N_PIECES = 160, 300, 100
MOST_NAMES = 8
Orders = Sequence[tuple[str, np.ndarray]]
"""An arm's label and the bucket of every batch of one of its runs."""


def shares_figure(orders: Orders) -> Figure:
    """How far each bucket's cumulative share is from its share of the whole run, one panel an arm."""
    n_columns = min(3, len(orders))
    n_rows = -(-len(orders) // n_columns)
    figure = new_figure(0.4 + 1.9 * n_rows)
    grid = figure.add_gridspec(n_rows, n_columns)
    for place, (label, order) in enumerate(orders):
        axes = figure.add_subplot(grid[place // n_columns, place % n_columns])
        _draw_shares(axes, order)
        titled(axes, stacked(label))
        bare(axes)
        if place // n_columns == n_rows - 1:
            axes.set_xlabel("share of the run")
        if place % n_columns == 0:
            axes.set_ylabel("batches ahead")
    return figure


def _draw_shares(axes: Axes, order: np.ndarray) -> None:
    counts = np.bincount(order)
    colours = _colours(len(counts))
    axes.axhline(0, color=FAINT, linewidth=0.8)
    for b, own in enumerate(plan_shares.slots_by_bucket(order, counts)):
        if len(own) == 0:
            continue
        at, low, high = plan_shares.deviation(own, len(order), min(N_PIECES, max(40, len(own) // 6)))
        axes.fill_between(at, low, high, color=colours[b], alpha=0.2, linewidth=0)
        axes.plot(at, (low + high) / 2, color=colours[b], linewidth=1.2)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: in_percent(share)))


def in_percent(share: float) -> str:
    """0 %, 20 %, ..."""
    return f"{100 * share:.0f} %"


def _colours(n_buckets: int) -> np.ndarray:
    """Dark for short ones, but not so dark that they vanish on black."""
    return colormaps["viridis"](np.linspace(0.15, 0.92, max(1, n_buckets)))


def strips_figure(orders: Orders) -> Figure:
    """Which bucket is drawn when, a strip an arm: every batch of a short run, else the rate against the fair one."""
    figure = new_figure(0.5 + 0.85 * len(orders))
    grid = figure.add_gridspec(len(orders), 1)
    for row, (label, order) in enumerate(orders):
        axes = figure.add_subplot(grid[row, 0])
        _draw_strip(axes, order)
        remark = (
            "" if row else "a mark is a batch" if len(order) <= EVERY_BATCH else "blue: too rare, orange: too often"
        )
        titled(axes, label, remark)
        bare(axes)
        axes.tick_params(left=False)
        if row < len(orders) - 1:
            axes.set_xticks(())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: in_percent(share)))
    axes.set_xlabel("share of the run")
    return figure


def _draw_strip(axes: Axes, order: np.ndarray) -> None:
    counts = np.bincount(order)
    n_buckets = len(counts)
    if len(order) <= EVERY_BATCH:
        cells = np.zeros((n_buckets, len(order), 4))
        cells[order, np.arange(len(order))] = _colours(n_buckets)[order]
    else:
        columns = min(STRIP_COLUMNS, max(24, len(order) // (6 * n_buckets)))
        rate = plan_shares.relative_rate(order, counts, plan_shares.columns(len(order), columns))
        cells = TOO_RARE_TO_TOO_OFTEN(np.clip(rate / 2, 0, 1))
    axes.imshow(cells, aspect="auto", extent=(0, 1, n_buckets - 0.5, -0.5), interpolation="nearest")
    every = -(-n_buckets // MOST_NAMES)
    axes.set_yticks(range(0, n_buckets, every), [str(b) for b in range(0, n_buckets, every)])
    axes.set_ylabel("bucket")
