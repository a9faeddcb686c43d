"""The product's own speed figures; the verb `bench`.

`bench line`: the overlapped line over stages that only sleep, as a share of what no line could beat: the work of the
slowest stage divided by its workers. And what a channel costs an item, with stages that do nothing.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dflash_exp.messages import BatchPlan, LossSums, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.line import Overlapped, run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import AfterStep, Stages, Threads

NOTHING = torch.empty(0, dtype=torch.int64)
RESULT = StepResult(0, LossSums(0.0, 0.0, 0, 0, 0, 0), {}, [], 0, 1, False, 0.0, 0.0, False, False)


@dataclass(frozen=True)
class Simulation:
    """Stages that sleep: mean units of each, times jittered normally."""

    n_items: int = 2000
    unit_s: float = 0.005
    collate: float = 0.2
    target: float = 3.0
    target_workers: int = 3
    drafter: float = 1.0
    jitter: float = 0.3
    """Standard deviation, of the mean."""
    window: int = 12
    """Items whose features may be under way."""


class SleepingStages:
    """What each item costs is drawn beforehand: the bound is of the sleeps that were asked for."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        rng = np.random.default_rng(seed)
        means = (simulation.collate, simulation.target, simulation.drafter)
        draws = rng.normal(1.0, simulation.jitter, (3, simulation.n_items)).clip(min=0.0)
        self.seconds = draws * np.array(means)[:, None] * simulation.unit_s

    def bound_s(self, target_workers: int) -> float:
        """The slowest stage's work, over its workers."""
        return float((self.seconds.sum(1) / (1, target_workers, 1)).max())

    def stages(self) -> Stages:
        """As the line takes them."""
        return Stages(self._prefetch, self._target, self, lambda _: 0, lambda _: 0)

    def accumulate(self, features: TargetFeatures) -> None:
        """The drafter's sleep."""
        self._sleep(2, features.batch.plan.number)

    def finish(self) -> StepResult:
        """Nothing."""
        return RESULT

    def _prefetch(self, plan: BatchPlan) -> TokenBatch:
        self._sleep(0, plan.number)
        return TokenBatch(plan, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)

    def _target(self, batch: TokenBatch) -> TargetFeatures:
        self._sleep(1, batch.plan.number)
        return TargetFeatures(batch, NOTHING)

    def _sleep(self, stage: int, number: int) -> None:
        if self.seconds[stage, number] > 0:
            time.sleep(self.seconds[stage, number])


@dataclass(frozen=True)
class LineFigures:
    """Medians over the rounds."""

    share_of_bound: float
    overhead_us_an_item: float
    """Of stages that do nothing, overlapped, less the same in a for-loop."""
    rounds: int
    simulation: Simulation


def bench_line(simulation: Simulation, rounds: int) -> LineFigures:
    """Simulated stages, then empty ones, interleaved."""
    shares, overheads = [], []
    steps = [(BatchPlan(n, 0, n, 0, n, np.arange(1)),) for n in range(simulation.n_items)]
    empty = Simulation(n_items=simulation.n_items, collate=0.0, target=0.0, drafter=0.0, window=simulation.window)
    for seed in range(rounds):
        sleeping = SleepingStages(simulation, seed)
        shares.append(sleeping.bound_s(simulation.target_workers) / overlapped_s(steps, sleeping, simulation))
        idle = SleepingStages(empty, seed)
        excess_s = overlapped_s(steps, idle, simulation) - lockstep_s(steps, idle)
        overheads.append(1e6 * excess_s / simulation.n_items)
    return LineFigures(round(median(shares), 4), round(median(overheads), 1), rounds, simulation)


def overlapped_s(steps: Sequence[tuple[BatchPlan, ...]], stages: SleepingStages, simulation: Simulation) -> float:
    """Seconds of the overlapped line."""
    config = Overlapped(Threads(None, None), simulation.window, simulation.window, 2**40, 600.0)
    started_s = time.perf_counter()
    run_overlapped(steps, stages.stages(), config, simulation.target_workers, GO_ON, lambda _: None)
    return time.perf_counter() - started_s


def lockstep_s(steps: Sequence[tuple[BatchPlan, ...]], stages: SleepingStages) -> float:
    """Seconds of the for-loop."""
    started_s = time.perf_counter()
    run_lockstep(steps, stages.stages(), Threads(None, None), GO_ON)
    return time.perf_counter() - started_s


def _go_on(_: StepResult, __: StepTiming) -> bool:
    return True


GO_ON: AfterStep = _go_on


def show_line(rounds: int, n_items: int, as_json: bool) -> int:
    """Print the figures of `bench line`; returns 0."""
    figures = bench_line(Simulation(n_items=n_items), rounds)
    if as_json:
        print(json.dumps(asdict(figures)))
        return 0
    simulation = figures.simulation
    table = Table("bench line", "", show_header=False)
    table.add_row(
        "simulated",
        f"{n_items} items, target {simulation.target:g} units x {simulation.target_workers} workers, drafter "
        f"{simulation.drafter:g}, collate {simulation.collate:g}, unit {1000 * simulation.unit_s:g} ms, jitter "
        f"{simulation.jitter:.0%}, window {simulation.window}",
    )
    table.add_row("of the bound", f"{figures.share_of_bound:.1%}")
    table.add_row("channels", f"{figures.overhead_us_an_item:g} us an item")
    table.add_row("medians of", f"{rounds} rounds")
    Console().print(table)
    return 0
