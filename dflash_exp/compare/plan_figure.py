"""plan.png: an epoch's order at a glance, three pictures over the same share of the epoch and two beside them.

In: the order and its plan.json. Out: a figure 1200 pixels wide, or its PNG. From the top: which bucket is drawn too
often or too rarely, and where it runs out; how many batches each is ahead of its fair share; the mix that windows
of 100 batches see; beside them, how often each bucket is drawn in the first tenth, and how long the runs are.
"""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dflash_exp.compare import plan_panels
from dflash_exp.compare.plan_panels import FAINT, INK, Shown, percent
from dflash_exp.compare.plan_shares import least_longest_run

SIZE_INCHES, DPI = (8.0, 6.6), 150


def plan_png(order: np.ndarray, document: Mapping[str, Any]) -> bytes:
    """The figure of `plan_figure` as a PNG."""
    figure, buffer = plan_figure(order, document), io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def plan_figure(order: np.ndarray, document: Mapping[str, Any]) -> Figure:
    """The order int [N] of one batch or more, with what plan.json says of it."""
    shown = Shown(order, document)
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
    grid = figure.add_gridspec(
        3, 2, width_ratios=(3.1, 1), height_ratios=(1.25, 1.5, 1.1),
        left=0.09, right=0.985, top=0.835, bottom=0.08, hspace=0.33, wspace=0.2,
    )  # fmt: skip
    strip = figure.add_subplot(grid[0, 0])
    _write_head(figure, shown)
    plan_panels.draw_strip(strip, shown)
    plan_panels.draw_deviation(figure.add_subplot(grid[1, 0], sharex=strip), shown)
    plan_panels.draw_mix(figure.add_subplot(grid[2, 0], sharex=strip), shown)
    plan_panels.draw_first_tenth(figure.add_subplot(grid[0, 1], sharey=strip), shown)
    plan_panels.draw_runs(figure.add_subplot(grid[1:, 1]), shown)
    return figure


def _write_head(figure: Figure, shown: Shown) -> None:
    document, n_buckets = shown.document, np.count_nonzero(shown.counts)
    figure.text(0.02, 0.975, document["strategy"], size=17, weight="bold", color=INK, va="top")
    size = (
        f"{shown.n_batches:,} batches in {n_buckets} {'bucket' if n_buckets == 1 else 'buckets'}, "
        f"{document['steps_per_epoch']:,} steps, seed {document['seeds']['order']}"
    )
    figure.text(0.985, 0.962, size, size=9, color=FAINT, va="top", ha="right")
    off = document["max_prefix_deviation"]
    figures = (
        f"longest run {document['max_run']:,} ({least_longest_run(shown.counts):,} is possible)",
        f"up to {off:,.{0 if off >= 100 else 1}f} batches off the fair share",
        f"first bucket out at {percent(min(shown.ends)[0])}",
    )
    figure.text(0.02, 0.921, "   ·   ".join(figures), size=9.5, color=INK, va="top")
