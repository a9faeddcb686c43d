"""Figures of differences: the verdict as an interval beside the margin, speed and waits, buckets at odds.

In: contrasts and arms as they are drawn. Out: figures.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dflash_exp.compare.drawing import Drawn, bare, legend, new_figure, short, stacked, titled
from dflash_exp.compare.judged import Contrast, Values
from dflash_exp.compare.measures import Measure
from dflash_exp.compare.plan_panels import FAINT, INK

MARGIN_COLOUR = "#3f9e62"


def verdict_figure(contrasts: Sequence[Contrast], drawn: Sequence[Drawn], kind: Measure) -> Figure:
    """Each arm's difference from the baseline in percent of it, its interval, a dot a seed; shaded: the margin."""
    figure = new_figure(0.85 + 0.42 * len(contrasts))
    axes = figure.add_subplot()
    colour = {each.arm.label: each.colour for each in drawn}
    percents = [100 * (contrasts[0].n_for_margin or {"margin": 0.0})["margin"]]
    reach = [2 * percents[0]]
    for row, contrast in enumerate(contrasts):
        unit = percents[0] / contrast.margin if contrast.margin else 1.0
        reach += _draw_contrast(axes, row, contrast, unit, colour[contrast.a])
    axes.axvspan(-percents[0], percents[0], color=MARGIN_COLOUR, alpha=0.13, linewidth=0)
    axes.axvline(0, color=FAINT, linewidth=1)
    names = [
        stacked(contrast.a) + ("" if contrast.adjustment != "none" else "\n(asked beforehand)")
        for contrast in contrasts
    ]
    axes.set_yticks(range(len(contrasts)), names)
    limit = 1.12 * max(reach) or 1.0  # of one seed nothing reaches anywhere
    axes.set(ylim=(len(contrasts) - 0.4, -0.6), xlim=(-limit, limit))
    towards = "← better" if kind.lower_is_better else "better →"
    axes.set_xlabel(f"difference of {kind.title} from {contrasts[0].b}, % of it      {towards}")
    bare(axes)
    return figure


def _draw_contrast(axes: Axes, row: int, contrast: Contrast, unit: float, colour: str) -> list[float]:
    """Draws one; how far its interval and difference reach, in percent."""
    seeds = contrast.by_seed * unit
    axes.plot(seeds, np.full(len(seeds), row + 0.2), "o", color=colour, markersize=3, alpha=0.6, markeredgewidth=0)
    axes.plot([contrast.difference * unit], [row], "D", color=colour, markersize=6)
    if contrast.interval is None:
        return [abs(contrast.difference * unit)]
    low, high = (end * unit for end in contrast.interval)
    axes.plot([low, high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
    return [abs(low), abs(high)]


def speed_figure(drawn: Sequence[Drawn], speed: Values, waits: Values) -> Figure:
    """Tokens a second and the share of the time in which the drafter waits, a dot a seed."""
    figure = new_figure(1.2 + 0.3 * len(drawn))
    legend(figure, drawn)
    grid = figure.add_gridspec(1, 2)
    for place, values in enumerate((speed, waits)):
        axes = figure.add_subplot(grid[0, place])
        _draw_bars(axes, drawn, values)
        titled(axes, values.measure.title)
        bare(axes)
    return figure


def _draw_bars(axes: Axes, drawn: Sequence[Drawn], values: Values) -> None:
    scale, unit = values.measure.scale, values.measure.unit
    for row, each in enumerate(drawn):
        held = values.of(each.arm) * scale
        held = held[np.isfinite(held)]
        if len(held) == 0:
            continue
        axes.barh([row], [held.mean()], height=0.6, color=each.colour, alpha=0.55)
        axes.plot(held, np.full(len(held), row), "o", color=INK, markersize=3, markeredgewidth=0)
    axes.set(ylim=(len(drawn) - 0.4, -0.6), yticks=())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{short(value)} {unit}".strip()))


def conflict_figure(matrices: Sequence[tuple[str, Sequence[int], np.ndarray]]) -> Figure:
    """Cosines between the gradients of buckets at one place, a matrix an arm: label, buckets [K], cosines [K, K]."""
    n_columns = min(4, len(matrices))
    n_rows = -(-len(matrices) // n_columns)
    figure = new_figure(0.3 + 2.3 * n_rows)
    grid = figure.add_gridspec(n_rows, n_columns)
    for place, (label, buckets, cosine_KK) in enumerate(matrices):
        axes = figure.add_subplot(grid[place // n_columns, place % n_columns])
        axes.imshow(cosine_KK, cmap="RdBu", vmin=-1, vmax=1)
        for row, column in np.ndindex(cosine_KK.shape):
            ink = "#fdfdfd" if abs(cosine_KK[row, column]) > 0.6 else "#111111"  # on colours of their own, on any page
            text = f"{cosine_KK[row, column]:.2f}"
            axes.text(column, row, text, ha="center", va="center", size=7, color=ink)
        axes.set_xticks(range(len(buckets)), [str(b) for b in buckets])
        axes.set_yticks(range(len(buckets)), [str(b) for b in buckets])
        titled(axes, stacked(label))
        bare(axes)
    return figure
