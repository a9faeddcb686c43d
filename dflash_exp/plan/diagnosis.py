"""An order to the numbers of plan.json: runs, exhaustion, deviation, mix of windows, weights.

An order and its counts are enough for most figures (`diagnose_order`); a planned epoch adds those of lengths,
anchors and weights (`diagnose`). What was not handed in is null, never a guess. Units are batches unless a name
says otherwise. TV is the total variation between the bucket mix of some batches and that of the epoch.
"""

# N batches, K buckets, W windows

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from dflash_exp.plan.align import step_bounds
from dflash_exp.plan.epoch import EpochPlan
from dflash_exp.plan.interleave import Interleave, option_name
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import array_sha256

WINDOW_BATCHES = 100


@dataclass(frozen=True, eq=False)
class BatchCosts:
    """What each batch costs the two stages, float [N] in the order of training, both in the same unit."""

    target: np.ndarray
    drafter: np.ndarray
    unit: str
    """FLOP or s."""
    basis: str
    """What the costs rest on, in words."""
    target_devices: int = 0
    """Devices that do the target's work at once; 0: target and drafter share one."""


def diagnose(plan: EpochPlan, lr_per_step: np.ndarray | None = None) -> dict[str, object]:
    """plan.json of a planned epoch, but for what it costs; `lr_per_step` is float [n_steps], the learning rate of each
    of its steps."""
    settings, sequences, counts = plan.settings, plan.sequences, plan.counts
    document = diagnose_order(
        plan.order, counts, settings.interleave, settings.batches_per_step, settings.seeds, plan.epoch
    )
    document |= {
        "edges": plan.edges.tolist(),
        "sequences": len(sequences.lengths),
        "tokens": sequences.n_tokens,
        "anchors": plan.n_anchors,
        "padding_share": 1 - sequences.n_tokens / plan.n_padded_tokens,
        "per_bucket": per_bucket(plan),
        "batches_sha256": plan.batches_sha256,
        "plan_sha256": plan.plan_sha256,
    }
    if sequences.weights is not None:
        weight_N = plan.batch_sums(sequences.weights)
        document["weight_per_step"] = plan.weight_per_step
        document["anchor_weight"] = anchor_weight(plan.order, weight_N, plan.bounds, len(counts))
        if lr_per_step is not None:
            lr_N = np.repeat(lr_per_step, np.diff(plan.bounds))
            document["lr_share"] = relative_share(plan.order, lr_N * weight_N, weight_N, len(counts))
    return document


def diagnose_order(
    order: np.ndarray, counts: np.ndarray, interleave: Interleave, batches_per_step: int, seeds: Seeds, epoch: int
) -> dict[str, object]:
    """plan.json of an order int32 [N] of one batch or more, known by its counts int [K] alone."""
    if len(order) == 0:
        raise ValueError(f"plan.counts must hold at least one batch, got {counts.tolist()}; raise one of them")
    bounds = step_bounds(len(order), batches_per_step)
    _, run_lengths = runs(order)
    sizes, n_runs = np.unique(run_lengths, return_counts=True)
    return {
        "strategy": option_name(interleave),
        "seeds": asdict(seeds),
        "epoch": epoch,
        "edges": None,
        "counts": counts.tolist(),
        "sequences": None,
        "tokens": None,
        "anchors": None,
        "padding_share": None,
        "per_bucket": None,
        "batches_sha256": None,
        "order_sha256": array_sha256(order.astype("<i4")),
        "plan_sha256": None,
        "batches_per_step": batches_per_step,
        "max_run": int(run_lengths.max()),
        "mean_run": float(run_lengths.mean()),
        "run_lengths": {str(size): n for size, n in zip(sizes.tolist(), n_runs.tolist(), strict=True)},
        "max_prefix_deviation": max_prefix_deviation(order, counts),
        "exhausted_at": exhausted_at(order, counts),
        "pick_rate": {"first_10pct": pick_rate(order, counts, 10), "first_50pct": pick_rate(order, counts, 50)},
        "tail_batches": int(run_lengths[-1]),
        "window_tv": window_tv(order, counts),
        "step_mix_tv": _mean_max(mix_tv(order, counts, bounds)),
        "weight_per_step": None,
        "anchor_weight": None,
        "peak_lr": None,
        "lr_share": None,
        "cost": None,
        "sync_efficiency": None,
        "memory_bytes": None,
        "hours": None,
        "steps_per_epoch": len(bounds) - 1,
        "loss_from": None,
    }


def per_bucket(plan: EpochPlan) -> dict[str, list[int] | None]:
    """What each bucket holds in this epoch: sequences, anchors, tokens, and tokens with the padding."""
    sequences, batches = plan.sequences, plan.batches
    n_sequences = batches.sizes
    padded_N = batches.longest(sequences.lengths).astype(np.int64) * n_sequences

    def summed(values_N: np.ndarray) -> list[int]:
        sums = np.zeros(len(plan.counts), dtype=np.int64)
        np.add.at(sums, batches.bucket, values_N)
        return sums.tolist()

    return {
        "sequences": summed(n_sequences),
        "anchors": None if sequences.anchors is None else summed(batches.sums(sequences.anchors)),
        "tokens": summed(batches.sums(sequences.lengths)),
        "padded_tokens": summed(padded_N),
    }


def runs(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The maximal runs of one bucket: the bucket of each, and its length, in order."""
    begins = np.flatnonzero(np.diff(order, prepend=-1))
    return order[begins], np.diff(begins, append=len(order))


def max_prefix_deviation(order: np.ndarray, counts: np.ndarray) -> float:
    """The most that any bucket is ahead of or behind its fair share of the first t slots, over all t, in batches.

    The extremes lie just before and just after a bucket's own draws, so only those are looked at.
    """
    worst = 0.0
    for slots, count in zip(_slots_by_bucket(order, counts), counts.tolist(), strict=True):
        share = count / len(order)
        drawn = np.arange(count)
        behind = share * slots - drawn
        ahead = drawn + 1 - share * (slots + 1)
        worst = max(worst, behind.max(initial=0.0), ahead.max(initial=0.0))
    return float(worst)


def exhausted_at(order: np.ndarray, counts: np.ndarray) -> list[float | None]:
    """The share of the epoch at which each bucket's last batch is drawn; None for an empty bucket."""
    return [(int(slots[-1]) + 1) / len(order) if len(slots) else None for slots in _slots_by_bucket(order, counts)]


def _slots_by_bucket(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Where each bucket is drawn, ascending: K arrays of counts[b] slots."""
    return np.split(np.argsort(order, kind="stable"), np.cumsum(counts)[:-1])


def pick_rate(order: np.ndarray, counts: np.ndarray, percent: int) -> list[float | None]:
    """How often each bucket is drawn in the first floor(percent/100 N) slots, at least one, over its fair rate."""
    prefix = max(1, percent * len(order) // 100)
    drawn = np.bincount(order[:prefix], minlength=len(counts))
    return _ratios(drawn / prefix, counts / len(order))


def mix_tv(order: np.ndarray, counts: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Total variation of the bucket mix from the epoch's, float [W], of the windows between bounds int [W + 1]."""
    n_windows, n_buckets = len(bounds) - 1, len(counts)
    window = np.repeat(np.arange(n_windows), np.diff(bounds))
    drawn_WK = np.bincount(window * n_buckets + order[: bounds[-1]], minlength=n_windows * n_buckets)
    mix_WK = drawn_WK.reshape(n_windows, n_buckets) / np.diff(bounds)[:, None]
    return np.abs(mix_WK - counts / len(order)).sum(axis=1) / 2


def window_tv(order: np.ndarray, counts: np.ndarray) -> dict[str, float] | None:
    """Mean and largest TV of disjoint windows of 100 batches, the remainder dropped; None for fewer than 100."""
    n_windows = len(order) // WINDOW_BATCHES
    if n_windows == 0:
        return None
    return {"window": WINDOW_BATCHES} | _mean_max(mix_tv(order, counts, np.arange(n_windows + 1) * WINDOW_BATCHES))


def anchor_weight(
    order: np.ndarray, weight_N: np.ndarray, bounds: np.ndarray, n_buckets: int
) -> dict[str, list[float | None]]:
    """What a token of each bucket counts in the objective, 1 = fair, under each loss.reduction.

    `weight_N` is each batch's expected weight in the order of training. `epoch` divides all by one constant, `step`
    by the step's own weight, `batch` takes the mean of the step's batch means.
    """
    n_batches = np.diff(bounds)
    step_weight_N = np.repeat(np.add.reduceat(weight_N, bounds[:-1]), n_batches)
    per_step = np.divide(weight_N, step_weight_N, out=np.zeros_like(weight_N), where=step_weight_N > 0)
    per_batch = (weight_N > 0) / np.repeat(n_batches, n_batches)
    counted = {"epoch": weight_N, "step": per_step, "batch": per_batch}
    return {name: relative_share(order, counted_N, weight_N, n_buckets) for name, counted_N in counted.items()}


def relative_share(order: np.ndarray, counted_N: np.ndarray, fair_N: np.ndarray, n_buckets: int) -> list[float | None]:
    """Each bucket's share of the sum of `counted_N` over its share of `fair_N`; None where it has no fair share."""
    counted = np.bincount(order, weights=counted_N, minlength=n_buckets)
    fair = np.bincount(order, weights=fair_N, minlength=n_buckets)
    return _ratios(counted * fair.sum(), fair * counted.sum())


def cost_per_batch(order: np.ndarray, counts: np.ndarray, costs: BatchCosts) -> dict[str, object]:
    """The mean cost of a batch of each bucket in both stages, and the bottleneck, with the larger sum over the epoch.

    Where the stages have devices of their own it sets the pace; where they share one, it takes most of its time.
    """
    target = np.bincount(order, weights=costs.target, minlength=len(counts))
    drafter = np.bincount(order, weights=costs.drafter, minlength=len(counts))
    return {
        "target": _ratios(target, counts),
        "drafter": _ratios(drafter, counts),
        "bottleneck": "target" if target.sum() / max(1, costs.target_devices) > drafter.sum() else "drafter",
        "unit": costs.unit,
        "basis": costs.basis,
    }


def _ratios(values: np.ndarray, fair: np.ndarray) -> list[float | None]:
    return [value / share if share > 0 else None for value, share in zip(values.tolist(), fair.tolist(), strict=True)]


def _mean_max(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "max": float(values.max())}
