"""How a step's time grows: one panel for each size that is doubled, with the fitted power of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter


@dataclass(frozen=True)
class Growth:
    """Seconds of a step at several sizes of one kind, all else equal."""

    of: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Of the power of the size that fits the times best in the logarithm."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.seconds), 1)[0])


def write_growth_figure(growths: Sequence[Growth], path: Path) -> None:
    """A PNG: measured times as points, the fitted power as a line, both axes logarithmic."""
    figure = Figure(figsize=(3.2 * len(growths), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, growth in zip(np.atleast_1d(figure.subplots(1, len(growths), sharey=True)), growths, strict=True):
        sizes, milliseconds = np.array(growth.sizes), 1e3 * np.array(growth.seconds)
        middle = np.exp(np.log(milliseconds).mean() - growth.exponent * np.log(sizes).mean())
        axes.loglog(sizes, middle * sizes**growth.exponent, color="0.6")
        axes.loglog(sizes, milliseconds, "o", color="C0")
        axes.set_title(f"{growth.of}: power {growth.exponent:.2f}", fontsize=10)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.set_xlabel(growth.of)
    figure.axes[0].set_ylabel("ms a step")
    figure.savefig(path, dpi=150)
