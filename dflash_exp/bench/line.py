"""`bench line`: the overlapped line over stages that only sleep.

As a share of what no line could beat: the work of the slowest stage divided by its workers. And what one channel costs
an item.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from threading import Thread

import numpy as np
import torch
from rich.table import Table

from dflash_exp.console import LastingConsole
from dflash_exp.messages import BatchPlan, LossSums, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.channel import Channel
from dflash_exp.pipeline.line import Overlapped, run_overlapped
from dflash_exp.pipeline.stages import Stages, Threads

NOTHING = torch.empty(0, dtype=torch.int64)
RESULT = StepResult(0, LossSums(0.0, 0.0, 0, 0, 0, 0), {}, [], 0, 1, False, 0.0, 0.0, False, False)


@dataclass(frozen=True)
class Simulation:
    """Stages that sleep: mean units of each, times jittered normally."""

    n_items: int = 2000
    unit_s: float = 0.01
    collate: float = 0.2
    target: float = 3.0
    target_workers: int = 3
    drafter: float = 1.0
    jitter: float = 0.3
    """Standard deviation, of the mean."""
    window: int = 12
    """Items whose features may be under way."""


class SleepingStages:
    """What each item costs is drawn beforehand; the bound is of the sleeps as they were."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        rng = np.random.default_rng(seed)
        means = (simulation.collate, simulation.target, simulation.drafter)
        draws = rng.normal(1.0, simulation.jitter, (3, simulation.n_items)).clip(min=0.0)
        self.seconds = draws * np.array(means)[:, None] * simulation.unit_s
        self.spent_s = np.zeros((3, simulation.n_items))
        """What the sleeps took: a little more than was asked for, which is not the line's doing."""

    def bound_s(self, target_workers: int) -> float:
        """The slowest stage's work, over its workers."""
        return float((self.spent_s.sum(1) / (1, target_workers, 1)).max())

    def stages(self, n_workers: int) -> Stages:
        """As the line takes them."""
        return Stages(self._prefetch, [self._target] * n_workers, self, lambda _: 0, lambda _: 0)

    def accumulate(self, features: TargetFeatures) -> None:
        """The drafter's sleep."""
        self._sleep(2, features.batch.plan.number)

    def meet(self) -> None:
        """Nobody."""

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
        started_s = time.perf_counter()
        if self.seconds[stage, number] > 0:
            time.sleep(self.seconds[stage, number])
        self.spent_s[stage, number] = time.perf_counter() - started_s


@dataclass(frozen=True)
class LineFigures:
    """Medians over the rounds."""

    share_of_bound: float
    channel_us_an_item: float
    """Through one channel, from one thread to another."""
    rounds: int
    simulation: Simulation


def bench_line(simulation: Simulation, rounds: int) -> LineFigures:
    """Simulated stages and a bare channel, interleaved."""
    shares, channels = [], []
    steps = [(BatchPlan(n, 0, n, 0, n, np.arange(1)),) for n in range(simulation.n_items)]
    for seed in range(rounds):
        sleeping = SleepingStages(simulation, seed)
        taken_s = overlapped_s(steps, sleeping, simulation)
        shares.append(sleeping.bound_s(simulation.target_workers) / taken_s)
        channels.append(1e6 * channel_s(simulation) / simulation.n_items)
    return LineFigures(round(median(shares), 4), round(median(channels), 1), rounds, simulation)


def overlapped_s(steps: Sequence[tuple[BatchPlan, ...]], stages: SleepingStages, simulation: Simulation) -> float:
    """Seconds of the overlapped line."""
    config = Overlapped(Threads(None, None), simulation.window, simulation.window, 2**40, 600.0)
    started_s = time.perf_counter()
    run_overlapped(steps, stages.stages(simulation.target_workers), config, _go_on, lambda _: None)
    return time.perf_counter() - started_s


def channel_s(simulation: Simulation) -> float:
    """Seconds of all items through one channel, whose ends do nothing else."""
    channel: Channel[None] = Channel(simulation.window)

    def send() -> None:
        for number in range(simulation.n_items):
            channel.reserve(number, 0)
            channel.put(number, None)

    sender = Thread(target=send)
    started_s = time.perf_counter()
    sender.start()
    for _ in range(simulation.n_items):
        channel.release(channel.take()[0])
    sender.join()
    return time.perf_counter() - started_s


def _go_on(_: StepResult, __: StepTiming) -> bool:
    return True


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
    table.add_row("a channel", f"{figures.channel_us_an_item:g} us an item")
    table.add_row("medians of", f"{rounds} rounds")
    LastingConsole().print(table)
    return 0
