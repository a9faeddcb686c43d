"""`bench step`: where the drafter's step spends its time, how far it is from the processor's limit, how it grows.

In: a size. Out: figures. The limit is that of matrix products alone: the step's operations, counted by torch, at the
rate that a product of two large square matrices reaches here, on the same threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from dflash_exp.bench.figures import Figure, figures_json, figures_table, round_seconds
from dflash_exp.bench.step_made import SIZES, Size, given
from dflash_exp.bench.step_parts import step_parts
from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import TargetFeatures
from dflash_exp.optim import AdamW, Schedule, build_optimizer

SLOTS_PER_PASS = 4096
SQUARE = 2048
"""Rows of the matrices whose product gives the rate."""
REST = "the rest: rotations, copies, indices"


@dataclass(frozen=True)
class Growth:
    """A step's time over one of its dimensions, the others as they are."""

    what: str
    values: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Of the power law that fits best: the slope of log time over log value."""
        x, y = [math.log(value) for value in self.values], [math.log(s) for s in self.seconds]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        along = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        return along / sum((a - mean_x) ** 2 for a in x)


def show_step(rounds: int, as_json: bool, plot: Path | None, sizes: Sequence[Size] = SIZES) -> int:
    """Print the figures of `bench step`, and draw the growth where `plot` says; returns 0."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures = [figure for size in sizes for figure in size_figures(size, rounds, device)]
    grown = [growth(what, values, sizes[0], rounds, device) for what, values in dimensions(sizes[0]).items()]
    group = f"growth of {sizes[0].name}: time ~ what^exponent"
    figures += [
        Figure(group, f"{one.what} {one.values[0]} .. {one.values[-1]}", one.exponent, "", None) for one in grown
    ]
    if as_json:
        print(figures_json(figures, rounds))
    else:
        Console().print(figures_table(figures, rounds))
    if plot is not None:
        from dflash_exp.bench.step_figure import draw_growth

        draw_growth(grown, sizes[0].name, plot)
    return 0


def new_step(size: Size, device: torch.device) -> tuple[DrafterStep, TargetFeatures]:
    """A step with AdamW, and the batch it is taken on."""
    made = given(size, device)
    optim = AdamW(
        lr=6e-4, betas=[0.9, 0.95], weight_decay=0.0, schedule=Schedule.constant, warmup_share=0.0, decay_share=0.0,
        max_grad_norm=1.0,
    )  # fmt: skip
    optimizer = build_optimizer(optim, made.drafter.named_parameters())
    loss = LossConfig(Reduction.step, made.gamma)
    return DrafterStep(made.drafter, loss, optimizer, GroupedPasses(SLOTS_PER_PASS), optim.max_grad_norm), made.features


def take(step: DrafterStep, features: TargetFeatures) -> None:
    """One whole step."""
    step.finish(step.accumulate(features).weight)


def size_figures(size: Size, rounds: int, device: torch.device) -> list[Figure]:
    """The whole step, its parts' shares, and what a processor that did nothing but its products would take."""
    step, features = new_step(size, device)
    parts = step_parts(step, features)
    square = torch.randn(SQUARE, SQUARE, device=device)
    calls = [partial(take, step, features), *parts.values(), lambda: square @ square]
    whole_s, *parts_s, square_s = (
        median(own) for own in round_seconds([waited(call, device) for call in calls], rounds)
    )
    rate = 2 * SQUARE**3 / square_s
    n_flop = operations(step, features)
    group = f"{size.name}, {torch.get_num_threads()} threads" if device.type == "cpu" else f"{size.name}, {device}"
    shares = {**dict(zip(parts, parts_s, strict=True)), REST: whole_s - sum(parts_s)}
    return [
        Figure(group, "a step", 1000 * whole_s, "ms", None),
        *[Figure(group, name, part_s / whole_s, "share", None) for name, part_s in shares.items()],
        Figure(group, "its products, operations", n_flop / 1e9, "GFLOP", None),
        Figure(group, f"a product of two {SQUARE} x {SQUARE}", rate / 1e9, "GFLOP/s", None),
        Figure(group, "a step over its products at that rate", whole_s * rate / n_flop, "x", None),
    ]


def operations(step: DrafterStep, features: TargetFeatures) -> int:
    """Of a step's matrix products, forward and backward, a multiplication and an addition being two."""
    counter = FlopCounterMode(display=False)
    with counter:
        step.accumulate(features)
    step.discard()
    return counter.get_total_flops()


def dimensions(size: Size) -> dict[str, tuple[int, ...]]:
    """What is varied, and over which values: from a half of the size's own to four times it."""
    own = {"tokens": max(size.lengths), "anchors": size.anchors, "vocabulary": size.vocabulary, "layers": size.n_layers}
    return {what: tuple(int(factor * value) for factor in (0.5, 1, 2, 4)) for what, value in own.items()}


def resized(size: Size, what: str, value: int) -> Size:
    """The same with one dimension changed."""
    if what == "tokens":
        return replace(size, lengths=tuple(length * value // max(size.lengths) for length in size.lengths))
    changes = {"anchors": {"anchors": value}, "vocabulary": {"vocabulary": value}, "layers": {"n_layers": value}}
    return replace(size, **changes[what])


def growth(what: str, values: tuple[int, ...], size: Size, rounds: int, device: torch.device) -> Growth:
    """Median seconds of a step at each value, rounds interleaved."""
    steps = [new_step(resized(size, what, value), device) for value in values]
    seconds = round_seconds([waited(partial(take, *step), device) for step in steps], rounds)
    return Growth(what, values, tuple(median(own) for own in seconds))


def waited(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call and, on CUDA, the wait for what it launched."""
    if device.type == "cpu":
        return call

    def both() -> None:
        call()
        torch.cuda.synchronize(device)

    return both
