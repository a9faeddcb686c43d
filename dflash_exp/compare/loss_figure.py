"""loss.png: the loss curve that an order shows with nothing learned, and beside it what each bucket costs.

In: the loss of every optimizer step at fixed parameters, its running median, where it jumps, the order and its
plan.json. Out: a figure 1200 pixels wide, or its PNG. Every dot is a step, in the colour of its mean bucket, dark for
short ones: where the median bends, the colours say which buckets bent it.
"""

# N batches, K buckets

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dflash_exp.compare.plan_panels import ALARM, FAINT, INK

SIZE_INCHES, DPI = (8.0, 3.6), 150
MOST_DOTS, MOST_JUMPS = 20_000, 400
MOST_NAMES = 12
"""Of so many buckets each has its figure; of more, evenly spread ones."""


@dataclass(frozen=True, eq=False)
class ShownCurve:
    """What is drawn of each optimizer step, [n_steps] each."""

    loss: np.ndarray
    """NaN where a step has none."""
    median: np.ndarray
    jumps: np.ndarray
    """bool."""


def loss_png(curve: ShownCurve, order: np.ndarray, document: Mapping[str, Any]) -> bytes:
    """The figure of `loss_figure` as a PNG."""
    figure, buffer = loss_figure(curve, order, document), io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def loss_figure(curve: ShownCurve, order: np.ndarray, document: Mapping[str, Any]) -> Figure:
    """The curve of the order int [N], with what plan.json says of both."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
    grid = figure.add_gridspec(
        1, 2, width_ratios=(3.6, 1), left=0.075, right=0.985, top=0.76, bottom=0.14, wspace=0.16
    )  # fmt: skip
    _write_head(figure, document)
    _draw_curve(figure.add_subplot(grid[0, 0]), curve, mean_bucket(order, document["batches_per_step"]), document)
    _draw_buckets(figure.add_subplot(grid[0, 1]), document)
    return figure


def mean_bucket(order: np.ndarray, batches_per_step: int) -> np.ndarray:
    """The mean bucket of each optimizer step's batches, float [n_steps]."""
    begins = np.arange(0, len(order), batches_per_step)
    return np.add.reduceat(order.astype(np.float64), begins) / np.diff(begins, append=len(order))


def thinned(n: int, most: int) -> np.ndarray:
    """Up to `most` of the numbers 0 .. n-1, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _write_head(figure: Figure, document: Mapping[str, Any]) -> None:
    source = document["loss_from"]
    title = f"{document['strategy']}: the loss with nothing learned"
    figure.text(0.02, 0.955, title, size=14, weight="bold", color=INK, va="top")
    at = f"at {source['checkpoint']}, seed {document['seeds']['order']}"
    figure.text(0.985, 0.945, at, size=9, color=FAINT, va="top", ha="right")
    figures = (
        f"mean {source['mean']:.3f} in any order",
        f"SD {source['curve_sd']:.3f}, within buckets {source['curve_sd_within']:.3f}",
        f"of the median {source['median_sd']:.4f}",
        f"{source['jumps']:,} {'jump' if source['jumps'] == 1 else 'jumps'}",
    )
    figure.text(0.02, 0.865, "   ·   ".join(figures), size=9.5, color=INK, va="top")


def _draw_curve(axes: Axes, curve: ShownCurve, bucket: np.ndarray, document: Mapping[str, Any]) -> None:
    n_steps, n_buckets = len(curve.loss), len(document["counts"])
    dots = thinned(n_steps, MOST_DOTS)
    size = 9 if n_steps <= 1000 else 4 if n_steps <= 5000 else 1.5
    colours = colormaps["viridis"](0.88 * bucket[dots] / max(1, n_buckets - 1))
    axes.scatter(dots + 1, curve.loss[dots], s=size, c=colours, linewidths=0, alpha=0.8)
    axes.axhline(document["loss_from"]["mean"], color=FAINT, linewidth=0.8)
    steps = np.flatnonzero(np.isfinite(curve.median))
    axes.plot(steps + 1, curve.median[steps], color=INK, linewidth=1.6)
    jumps = np.flatnonzero(curve.jumps)
    jumps = jumps[thinned(len(jumps), MOST_JUMPS)] if len(jumps) else jumps
    axes.scatter(jumps + 1, curve.loss[jumps], s=30, facecolors="none", edgecolors=ALARM, linewidths=0.9)
    axes.set_title("line: running median   ·   ring: a jump", size=8, color=FAINT, loc="right", y=1, pad=4)
    axes.set_title("Each step", size=10, weight="bold", color=INK, loc="left", y=1, pad=4)
    axes.set(xlim=(0.5, n_steps + 0.5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.set_xlabel("optimizer step", size=9, color=INK)
    _plain(axes)


def _draw_buckets(axes: Axes, document: Mapping[str, Any]) -> None:
    """The mean loss of each bucket against that of all."""
    found, mean = document["loss_from"]["per_bucket_mean"], document["loss_from"]["mean"]
    named = [b for b in thinned(len(found), MOST_NAMES).tolist() if found[b] is not None]
    values = np.array([found[b] for b in named])
    colours = colormaps["viridis"](0.88 * np.array(named) / max(1, len(found) - 1))
    rows = np.arange(len(named))
    bars = axes.barh(rows, values - mean, left=mean, height=0.66, color=colours)
    axes.bar_label(bars, [f"{value:.2f}" for value in values], size=8, padding=3, color=INK)
    axes.axvline(mean, color=FAINT, linewidth=0.8)
    reach = 2.2 * max(float(np.abs(values - mean).max()), 1e-3)
    axes.set(ylim=(len(named) - 0.4, -0.6), xlim=(mean - reach, mean + reach), xticks=())
    axes.set_yticks(rows, [str(b) for b in named])
    axes.set_title("Mean by bucket", size=10, weight="bold", color=INK, loc="left", y=1, pad=4)
    _plain(axes)
    axes.spines["bottom"].set_visible(False)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT, length=3)
