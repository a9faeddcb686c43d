"""`bench plan`: what orders and epochs take to make, what they pad, how long ranks wait.

In: strategies as `conf/` states them, and the configuration of the embedded data. Out: figures beside their targets.
Kernels are compiled before anything is timed; how long that takes, once a machine, is a figure of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dflash_exp.bench.alone import alone, first_calls_s, large_epoch
from dflash_exp.bench.corpus import N_RANKS, build_epoch, made_up_lengths
from dflash_exp.bench.figures import Figure, Timed, figures_json, figures_table, timed
from dflash_exp.config import Config
from dflash_exp.console import LastingConsole
from dflash_exp.plan.align import Align, Cost, Lpt, NoAlign, sync_efficiency
from dflash_exp.plan.cost import StageCosts, batch_costs, slower_stage
from dflash_exp.plan.interleave import Interleave, option_name
from dflash_exp.plan.seeds import named_rng
from dflash_exp.planning import plan_run

STORY = (2120, 4200, 5723, 7100, 8009, 19581)
"""Batches per bucket of the story, 46,733 in all; the middle three are ours."""
ONE_SCARCE = (20, 4200, 5723, 7100, 8009, 21681)
"""As many, 20 of them in the smallest bucket, whose stride is then as long as 2337 slots."""
ORDER_MS, ORDER_MS_OF = 3.0, {"earliest_deadline": 12.0, "quota_random": 60.0}
ONE_SCARCE_MS = 200.0
LARGE_ORDER_S, LARGE_ORDER_S_OF = 1.0, {"earliest_deadline": 5.0, "quota_random": 15.0}
EPOCH_MS = 50.0
PADDING_SHARE = 0.02
LPT_SHARE = 0.97
QWEN3_4B = StageCosts(0.0, 6.86e9, 2.8e5, 0.0, 4.49e9, 1.97e6, 2.9e8)
"""In FLOP (`cost.counted_costs`), with a drafter of 5 layers and blocks of 16."""
ANCHORS, BLOCK = 512, 16


@dataclass(frozen=True)
class Sizes:
    """How much is planned; the targets are for these numbers."""

    orders: tuple[int, ...] = STORY
    one_scarce: tuple[int, ...] = ONE_SCARCE
    sequences: int = 10**6
    aligned_sequences: int = 20_000
    large_batches: int = 10**7
    large_sequences: int = 10**8


def show_plan_figures(
    strategies: Sequence[Interleave], embedded: Config, rounds: int, large: bool, as_json: bool, sizes: Sizes
) -> int:
    """Print the figures of `bench plan`; returns 0."""
    figures = timed([*order_times(strategies, sizes), epoch_time(sizes)], rounds)
    if large:
        figures += timed(large_order_times(strategies, sizes), rounds)
        group = f"an epoch of {sizes.large_sequences:,} lengths, in a process of its own"
        figures += alone(large_epoch, group, sizes.large_sequences, rounds)
    first_s = alone(first_calls_s, strategies)
    figures.append(Figure("once a machine", "compiling every kernel", first_s, "s", None))
    figures += [padding(embedded), *waiting(sizes)]
    if as_json:
        print(figures_json(figures, rounds))
    else:
        LastingConsole().print(figures_table(figures, rounds))
    return 0


def order_times(strategies: Sequence[Interleave], sizes: Sizes) -> list[Timed]:
    """An order of every strategy, and of quota_random with a scarce bucket."""
    group = f"an order of {sum(sizes.orders):,} batches"
    times = []
    for strategy in strategies:
        name = option_name(strategy)
        target = ORDER_MS_OF.get(name, ORDER_MS)
        times.append(Timed(group, name, partial(draw, strategy, sizes.orders), "ms", target))
        if name == "quota_random":
            name = f"{name}, {min(sizes.one_scarce)} of them in the smallest bucket"
            times.append(Timed(group, name, partial(draw, strategy, sizes.one_scarce), "ms", ONE_SCARCE_MS))
    return times


def large_order_times(strategies: Sequence[Interleave], sizes: Sizes) -> list[Timed]:
    """An order of every strategy at counts in the same proportion."""
    counts = [count * sizes.large_batches // sum(sizes.orders) for count in sizes.orders]
    group = f"an order of {sum(counts):,} batches"
    named = [(option_name(strategy), strategy) for strategy in strategies]
    return [
        Timed(group, name, partial(draw, strategy, counts), "s", LARGE_ORDER_S_OF.get(name, LARGE_ORDER_S))
        for name, strategy in named
    ]


def draw(strategy: Interleave, counts: Sequence[int]) -> np.ndarray:
    """An order, of the same random numbers at every call."""
    return strategy.order(counts, named_rng("bench", 0, 0))


def epoch_time(sizes: Sizes) -> Timed:
    """From lengths to an epoch's arrays, a uniform reshuffle inside every bucket included."""
    lengths = made_up_lengths(sizes.sequences)
    group = f"an epoch of {sizes.sequences:,} lengths"
    return Timed(group, "time", partial(build_epoch, lengths), "ms", EPOCH_MS)


def padding(embedded: Config) -> Figure:
    """The share of the rectangles that no token fills."""
    first = plan_run(embedded).planner.epoch(0)
    share = 1 - first.sequences.n_tokens / first.n_padded_tokens
    what = f"batches.pool={embedded.batches.pool}, batches.budget_tokens={embedded.batches.budget_tokens}"
    return Figure("padding of the embedded conversations", what, share, "share", PADDING_SHARE)


def waiting(sizes: Sizes) -> list[Figure]:
    """Sync efficiency of each aligner, in the slower stage of Qwen3-4B: mean over largest load of the ranks."""
    lengths = made_up_lengths(sizes.aligned_sequences)
    plan = build_epoch(lengths)
    costs = batch_costs(plan.batches, lengths, np.minimum(ANCHORS, lengths // 2), BLOCK, QWEN3_4B)
    cost_N = slower_stage(*costs)[plan.drawn]
    group = f"work of {N_RANKS} ranks that meet every {plan.settings.batches_per_step} batches"
    aligners: list[tuple[str, Align, float | None]] = [
        ("none", NoAlign(), None), ("cost", Cost(), None), ("lpt", Lpt(), LPT_SHARE),
    ]  # fmt: skip
    shares = [sync_efficiency(align, cost_N, plan.bounds, N_RANKS) for _, align, _ in aligners]
    return [
        Figure(group, f"align={name}", share, "share", target, at_least=True)
        for (name, _, target), share in zip(aligners, shares, strict=True)
    ]
