"""How a step's time grows, drawn: both axes logarithmic, a line a dimension, its fitted exponent beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Grown(Protocol):
    """As `step.Growth`."""

    @property
    def what(self) -> str: ...
    @property
    def values(self) -> tuple[int, ...]: ...
    @property
    def seconds(self) -> tuple[float, ...]: ...
    @property
    def exponent(self) -> float: ...


def draw_growth(grown: Sequence[Grown], title: str, path: Path) -> None:
    """A picture; its format is that of the name's ending."""
    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for one in grown:
        middle = one.values[1]
        times = [value / middle for value in one.values]
        axes.loglog(
            times, [1000 * s for s in one.seconds], marker="o", label=f"{one.what}: exponent {one.exponent:.2f}"
        )
    axes.set(title=title, xlabel="times the size's own", ylabel="ms a step")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path)
