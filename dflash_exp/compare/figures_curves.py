"""Figures over tokens: losses, their difference from the baseline, losses by bucket, τ.

In: arms as they are drawn. Out: figures. A band is the 95 % interval over seeds, of fewer than three seeds their range.
"""

# R runs, G points of a grid, K buckets

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_exp.compare.drawing import (
    GRID,
    Band,
    Drawn,
    band,
    bare,
    common_grid,
    draw_band,
    legend,
    new_figure,
    on_grid,
    titled,
    token_axis,
)
from dflash_exp.compare.plan_panels import FAINT
from dflash_exp.compare.runs import Run

SHOWN_FROM = 0.08
"""Share of the tokens before which a loss falls too fast to leave room for the rest."""


def loss_figure(drawn: Sequence[Drawn], composition: Mapping[str, np.ndarray]) -> Figure:
    """Probe and train loss, and the probe's difference from the baseline's of the same seed.

    `composition` holds, by a run's name, the loss of each step with nothing learned.
    """
    figure = new_figure(5.6)
    legend(figure, drawn)
    grid = figure.add_gridspec(2, 2)
    probe, apart = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    train = figure.add_subplot(grid[1, :])
    _draw_curves(probe, drawn, "probe/loss")
    titled(probe, "Probe loss")
    _draw_difference(apart, drawn, "probe/loss")
    titled(apart, "Its difference from the baseline")
    _draw_train(train, drawn, composition)
    for axes in (probe, apart, train):
        bare(axes)
        token_axis(axes)
    return figure


def _draw_curves(axes: Axes, drawn: Sequence[Drawn], field: str) -> None:
    lowest, highest = [], []
    for each in drawn:
        curves = _curves(each.runs, field)
        if not curves:
            continue
        shown, late = _drawn_band(axes, curves, each)
        lowest.append(float(shown.low[late].min()))
        highest.append(float(shown.mean[late].max()))
    if lowest:
        room = 0.06 * (max(highest) - min(lowest)) or 0.1
        axes.set_ylim(min(lowest) - room, max(highest) + room)


def _drawn_band(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], each: Drawn) -> tuple[Band, np.ndarray]:
    """Draw the band of an arm's curves; it, and which of its points are late enough to say how high the axes go."""
    grid = common_grid(curves)
    shown = band(on_grid(curves, grid))
    draw_band(axes, grid, shown, each)
    return shown, grid >= grid[0] + SHOWN_FROM * (grid[-1] - grid[0])


def _curves(runs: Sequence[Run], field: str) -> list[tuple[np.ndarray, np.ndarray]]:
    curves = [run.curve(field) for run in runs]
    return [(tokens, values) for tokens, values in curves if len(tokens) > 1]


def _draw_difference(axes: Axes, drawn: Sequence[Drawn], field: str) -> None:
    """Only seeds that the baseline has too."""
    axes.axhline(0, color=FAINT, linewidth=0.9)
    base = next((each for each in drawn if each.is_baseline), None)
    late = []
    for each in drawn:
        if base is None or each.is_baseline:
            continue
        blocks = [block for block in each.arm.runs if block in base.arm.runs]
        pairs = [(each.arm.runs[block].curve(field), base.arm.runs[block].curve(field)) for block in blocks]
        pairs = [(one, two) for one, two in pairs if len(one[0]) > 1 and len(two[0]) > 1]
        if not pairs:
            continue
        grid = common_grid([curve for pair in pairs for curve in pair])
        shown = band(np.stack([np.interp(grid, *one) - np.interp(grid, *two) for one, two in pairs]))
        draw_band(axes, grid, shown, each)
        late.append(float(np.abs(shown.mean[grid >= grid[0] + 0.3 * (grid[-1] - grid[0])]).max()))
        late.append(0.8 * max(abs(float(shown.low[-1])), abs(float(shown.high[-1]))))
    if late and max(late) > 0:
        axes.set_ylim(-1.6 * max(late), 1.6 * max(late))


def _draw_train(axes: Axes, drawn: Sequence[Drawn], composition: Mapping[str, np.ndarray]) -> None:
    """Means of stretches of the run, as many as a curve has points."""
    lowest, highest = [], []
    for each in drawn:
        stretches = [_stretches(run.tokens, run.column("train/loss")) for run in each.runs if len(run.buckets) > 1]
        if not stretches:
            continue
        shown, late = _drawn_band(axes, stretches, each)
        lowest.append(float(shown.low[late].min()))
        highest.append(float(shown.high[late].max()))
        for run in each.runs:
            if run.name in composition:
                _draw_composition(axes, run, composition[run.name], each)
    if lowest:
        axes.set_ylim(min(lowest) - 0.05 * (max(highest) - min(lowest)), max(highest))
    titled(axes, "Train loss", "thin: the same order with nothing learned" if composition else "")


def _draw_composition(axes: Axes, run: Run, loss: np.ndarray, drawn: Drawn) -> None:
    """Moved to the level of the run's last tenth, since it is of one checkpoint: its shape is what counts."""
    n = min(len(loss), len(run.buckets))
    tokens, shape = _stretches(run.tokens[:n], loss[:n])
    level = np.nanmean(run.column("train/loss")[int(0.9 * n) : n]) - np.nanmean(loss[int(0.9 * n) : n])
    axes.plot(tokens, shape + level, color=drawn.colour, linewidth=0.8, alpha=0.8)


def _stretches(tokens: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over nearly equal stretches of steps, up to as many as a curve has points."""
    known = np.isfinite(values)
    tokens, values = tokens[known], values[known]
    begins = np.unique(np.linspace(0, len(values), min(GRID, len(values)), endpoint=False).astype(np.int64))
    n = np.diff(begins, append=len(values))
    return np.add.reduceat(tokens, begins) / n, np.add.reduceat(values, begins) / n


def bucket_figure(drawn: Sequence[Drawn], fields: Mapping[int, str]) -> Figure:
    """Each bucket's loss over tokens, one panel a bucket; `fields` names the record's field of each."""
    n_columns = min(3, len(fields))
    n_rows = -(-len(fields) // n_columns)
    figure = new_figure(0.6 + 2.0 * n_rows)
    legend(figure, drawn)
    grid = figure.add_gridspec(n_rows, n_columns)
    for place, (bucket, field) in enumerate(sorted(fields.items())):
        axes = figure.add_subplot(grid[place // n_columns, place % n_columns])
        _draw_curves(axes, drawn, field)
        titled(axes, f"Bucket {bucket}")
        bare(axes)
        token_axis(axes)
        if place // n_columns < n_rows - 1:
            axes.set_xlabel("")
    return figure


def tau_figure(drawn: Sequence[Drawn], decoded: Mapping[str, tuple[float, float, float]]) -> Figure:
    """τ replayed over tokens, and decoded: mean and ends of the interval by an arm's label."""
    figure = new_figure(3.2)
    legend(figure, drawn)
    grid = figure.add_gridspec(1, 2, width_ratios=(1.5, 1))
    replayed, ends = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    _draw_curves(replayed, drawn, "probe/tau_replayed")
    replayed.relim()
    replayed.autoscale(axis="y")
    titled(replayed, "τ replayed, held-out prompts")
    token_axis(replayed)
    shown = [each for each in drawn if each.arm.label in decoded]
    for row, each in enumerate(shown):
        mean, low, high = decoded[each.arm.label]
        ends.plot([low, high], [row, row], color=each.colour, linewidth=2.2, solid_capstyle="butt")
        ends.plot([mean], [row], "o", color=each.colour, markersize=6)
    ends.set(ylim=(max(len(shown), 1) - 0.5, -0.5), yticks=())
    titled(ends, "τ decoded at the end")
    ends.set_xlabel("τ, 95 % interval")
    bare(replayed)
    bare(ends)
    return figure
