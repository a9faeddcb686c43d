"""What the figures of a comparison share: colours, curves over seeds, bare axes; and their form as a file or in a page.

No pyplot and no settings that last. In a page a figure is inline SVG whose ink and ground are the page's own, so that
it is readable on light and dark; its colours of arms are mid-tones, which are on both.
"""

# R runs, G points of a grid

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from scipy import stats

from dflash_exp.compare.arms import Arm
from dflash_exp.compare.plan_panels import FAINT, INK
from dflash_exp.compare.runs import Run

WIDTH_INCHES, DPI = 8.6, 130
BASELINE_COLOUR = "#808080"
COLOURS = ("#3f7fc0", "#d9742f", "#3f9e62", "#b54d84", "#8a73c9", "#a88a32", "#37a3a3", "#c25151", "#7a9a35", "#5e6fd0")
LINES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
GRID = 120
"""Points of a curve."""
LEGEND_CHARACTERS = 112
"""Of labels that fit beside one another, with six for each label's line."""


@dataclass(frozen=True)
class Drawn:
    """An arm and how it is drawn."""

    arm: Arm
    colour: str
    line: Literal["-", "--", ":"]
    is_baseline: bool

    @property
    def runs(self) -> list[Run]:
        """The finished ones, which all go as far; where none is, those that have records."""
        begun = [run for run in self.arm.runs.values() if len(run.buckets)]
        return [run for run in begun if run.finished] or begun


def drawn_arms(arms: Sequence[Arm], baseline: Arm | None) -> list[Drawn]:
    """The baseline in grey, the others in colours of their own."""
    found, n = [], 0
    for arm in arms:
        colour, line = COLOURS[n % len(COLOURS)], LINES[n // len(COLOURS) % len(LINES)]
        found.append(Drawn(arm, BASELINE_COLOUR, "-", True) if arm is baseline else Drawn(arm, colour, line, False))
        n += arm is not baseline
    return found


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over seeds, [G] each."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curve_RG: np.ndarray) -> Band:
    """Mean and 95 % interval of three curves or more, mean and range of fewer."""
    mean, n = curve_RG.mean(axis=0), len(curve_RG)
    if n < 3:
        return Band(mean, curve_RG.min(axis=0), curve_RG.max(axis=0))
    half = stats.t.ppf(0.975, n - 1) * curve_RG.std(axis=0, ddof=1) / np.sqrt(n)
    return Band(mean, mean - half, mean + half)


def common_grid(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Points that all curves, of tokens and values, cover: float64 [G]."""
    first, last = max(tokens[0] for tokens, _ in curves), min(tokens[-1] for tokens, _ in curves)
    return np.linspace(first, max(first, last), GRID)


def on_grid(curves: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray) -> np.ndarray:
    """The curves at the points of a grid, [R, G]."""
    return np.stack([np.interp(grid, tokens, values) for tokens, values in curves])


def draw_band(axes: Axes, x: np.ndarray, curve: Band, drawn: Drawn, label: str | None = None) -> None:
    """A line in its band."""
    axes.fill_between(x, curve.low, curve.high, color=drawn.colour, alpha=0.18, linewidth=0)
    axes.plot(x, curve.mean, color=drawn.colour, linestyle=drawn.line, linewidth=1.6, label=label)


def new_figure(height_inches: float) -> Figure:
    """Laid out by matplotlib's own solver."""
    return Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DPI, facecolor="white", layout="constrained")


def titled(axes: Axes, title: str, remark: str = "") -> None:
    """What it shows, and in small how to read it."""
    axes.set_title(title, size=10, weight="bold", color=INK, loc="left", pad=6)
    axes.set_title(remark, size=8, color=FAINT, loc="right", pad=6)


def bare(axes: Axes) -> None:
    """Two thin spines."""
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT, length=3)
    axes.xaxis.label.set(size=9, color=INK)
    axes.yaxis.label.set(size=9, color=INK)


def token_axis(axes: Axes) -> None:
    """Tokens along x."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: short(tokens)))
    axes.set_xlabel("tokens trained")


def stacked(label: str) -> str:
    """An arm of several overrides, one below the other: a long line would be cut off."""
    return label.replace(" ", "\n")


def legend(figure: Figure, drawn: Sequence[Drawn]) -> None:
    """The arms, above everything."""
    from matplotlib.lines import Line2D

    labels = [stacked(each.arm.label) for each in drawn]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    handles = [
        Line2D([], [], color=each.colour, linestyle=each.line, linewidth=3, label=label)
        for each, label in zip(drawn, labels, strict=True)
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=max(1, min(4, len(handles), LEGEND_CHARACTERS // (longest + 6))),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
    )


def short(number: float) -> str:
    """1.2M, 40k, 300."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def settle(figure: Figure) -> Figure:
    """Lay it out now and keep that: the solver takes as long as all else, and would run for each file."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def png(figure: Figure) -> bytes:
    """As a file of pixels."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """As a file of lines and text; the name keeps its ids apart from those of others in a page."""
    buffer, dpi = io.StringIO(), figure.dpi
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    figure.set_dpi(dpi)  # which the printer leaves at 72
    return buffer.getvalue()


def inline(text: str, label: str) -> str:
    """An SVG file as an element of a page, its ink and ground being the page's."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    for colour, variable in ((INK, "--ink"), (FAINT, "--faint"), ("#ffffff", "--paper"), ("#000000", "--ink")):
        body = re.sub(rf"(fill|stroke): {colour}", rf"\1: var({variable})", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
