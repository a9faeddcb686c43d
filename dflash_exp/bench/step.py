"""`bench step`: where a step's time goes, how it grows, and how far it is from what the machine could do.

In: a size. Out: shares of the profiled time by part; the power of tokens, anchors, vocabulary and layers that the time
follows; the step's operations and bytes against a large product's rate and a large copy's. Everything is on the CPU, in
fp32, with as many threads as torch has.
"""

# A anchors, K block slots, H hidden

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dflash_exp.bench.figures import Figure, figures_json, figures_table, median_seconds
from dflash_exp.bench.made_up_step import SIZES, Given, Size, given, step_on
from dflash_exp.bench.roofline import roofline
from dflash_exp.compare.growth_figure import Growth, write_growth_figure
from dflash_exp.console import LastingConsole

PARTS = {
    "attention": ("_BlockAttention", "_BlockAttentionBackward"),
    "MLP": ("_Mlp", "_MlpBackward"),
    "head and loss": ("_HeadLoss", "_HeadLossBackward"),
    "projections": ("aten::linear", "autograd::engine::evaluate_function: MmBackward0"),
    "norms": ("_RmsNorm", "_RmsNormBackward"),
    "rotations": ("_Rotate", "_RotateBackward"),
    "optimizer": ("Optimizer.step#AdamW.step",),
    "copies": ("aten::copy_", "aten::cat", "aten::index_select", "aten::clone", "aten::contiguous"),
}
"""A profiled event belongs to the part of the outermost event that is named here."""
STEP = "bench step"
PROFILED_STEPS = 10
TOKENS, ANCHORS, VOCABULARIES, LAYERS = (512, 1024, 2048, 4096), (32, 64, 128, 256), (1024, 4096, 16384), (1, 2, 4, 8)


@dataclass(frozen=True)
class Axes:
    """What is doubled, and the step it begins at."""

    size: Size = SIZES[0]
    tokens: tuple[int, ...] = TOKENS
    anchors: tuple[int, ...] = ANCHORS
    vocabularies: tuple[int, ...] = VOCABULARIES
    layers: tuple[int, ...] = LAYERS


def show_step(rounds: int, as_json: bool, figure: Path | None, axes: Axes) -> int:
    """Print the figures of `bench step`, and draw how it grows into a file; returns 0."""
    on = given(axes.size)
    step_s = median_seconds([_taken(on)], rounds)[0]
    growths = growth(axes, rounds)
    figures = [Figure(axes.size.name, "a step", 1e3 * step_s, "ms", None), *shares(on), *roofline(on, step_s)]
    figures += [Figure("grows with the power", one.of, one.exponent, "", None) for one in growths]
    if figure is not None:
        write_growth_figure(growths, figure)
    if as_json:
        print(figures_json(figures, rounds))
    else:
        LastingConsole().print(figures_table(figures, rounds))
    return 0


def shares(on: Given) -> list[Figure]:
    """The parts of a step, of its time under the profiler, which makes small operations look larger."""
    take = _taken(on)
    take()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED_STEPS):
            with torch.profiler.record_function(STEP):
                take()
    spent = spent_by_part(profiled.events())
    whole = spent.pop(STEP)
    spent["all else"] = whole - sum(spent.values())
    return [Figure("where its time goes", part, time / whole, "share", None) for part, time in spent.items()]


def spent_by_part(events: Any) -> dict[str, float]:
    """Microseconds of every part, and of the steps: an event inside one of another part is that part's."""
    part_of = {name: part for part, names in PARTS.items() for name in names} | {STEP: STEP}
    spent = dict.fromkeys([*PARTS, STEP], 0.0)
    for event in events:
        part = part_of.get(event.name)
        if part is not None and (part == STEP or not _within(event, part_of)):
            spent[part] += event.cpu_time_total
    return spent


def _within(event: Any, part_of: dict[str, str]) -> bool:
    """Whether an event around this one is a part's, too."""
    around = event.cpu_parent
    while around is not None and around.name != STEP:
        if around.name in part_of:
            return True
        around = around.cpu_parent
    return False


def growth(axes: Axes, rounds: int) -> list[Growth]:
    """Times along each axis, rounds interleaved within it."""
    sizes = {
        "tokens": [(n, replace(axes.size, lengths=(n,))) for n in axes.tokens],
        "anchors": [(n, replace(axes.size, anchors=n)) for n in axes.anchors],
        "vocabulary": [(n, replace(axes.size, vocabulary=n)) for n in axes.vocabularies],
        "layers": [(n, replace(axes.size, n_layers=n)) for n in axes.layers],
    }
    growths = []
    for of, pairs in sizes.items():
        seconds = median_seconds([_taken(given(size)) for _, size in pairs], rounds)
        growths.append(Growth(of, tuple(n for n, _ in pairs), tuple(seconds)))
    return growths


def _taken(on: Given) -> Callable[[], object]:
    """A step, to be taken again and again."""
    step = step_on(on)
    return lambda: step.finish(step.accumulate(on.features).weight)
