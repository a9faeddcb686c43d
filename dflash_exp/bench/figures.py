"""A figure beside its target; medians of interleaved rounds."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import median

from rich.table import Table

PER_SECOND = {"s": 1.0, "ms": 1000.0}


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    group: str
    """What it is of; figures of one group stand together."""
    what: str
    value: float
    unit: str
    """s, ms, GB, or share, which is between 0 and 1 and printed in percent."""
    target: float | None
    """In the same unit; None: there is none."""
    at_least: bool = False
    """The target is a lower bound, not an upper one."""

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass(frozen=True)
class Timed:
    """Something whose time is a figure."""

    group: str
    what: str
    call: Callable[[], object]
    unit: str
    """s or ms."""
    target: float
    """In that unit, at most."""


def timed(calls: Sequence[Timed], rounds: int) -> list[Figure]:
    """The median of each over the rounds."""
    seconds = median_seconds([call.call for call in calls], rounds)
    return [
        Figure(call.group, call.what, PER_SECOND[call.unit] * own_s, call.unit, call.target)
        for call, own_s in zip(calls, seconds, strict=True)
    ]


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of each call over the rounds, in all of which every call has its turn, after one that does not count."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + rounds):
        for call, own in zip(calls, seconds, strict=True):
            began_s = time.perf_counter()
            call()
            own.append(time.perf_counter() - began_s)
    return [median(own[1:]) for own in seconds]


def figures_json(figures: Sequence[Figure], rounds: int) -> str:
    """One object: the rounds, and every figure with whether it holds."""
    return json.dumps({"rounds": rounds, "figures": [{**asdict(figure), "holds": figure.holds} for figure in figures]})


def figures_table(figures: Sequence[Figure], rounds: int) -> Table:
    """Each figure beside its target, a missed one in red; figures of one group under its name."""
    table = Table("", "measured", "target", title=f"medians of {rounds} rounds", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for group, own in groupby(figures, key=lambda figure: figure.group):
        table.add_section()
        table.add_row(group, style="bold")
        for figure in own:
            table.add_row(f"  {figure.what}", written(figure.value, figure.unit), _target(figure))
    return table


def written(value: float, unit: str) -> str:
    """Three digits of a time or a size, hundredths of a percent."""
    return f"{100 * value:.2f} %" if unit == "share" else f"{value:.3g} {unit}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    bound = f"{'>=' if figure.at_least else '<='} {written(figure.target, figure.unit)}"
    return bound if figure.holds else f"[red]missed: {bound}[/red]"
