"""What a comparison tells of a run, one figure each: quality, speed, cost.

In: a run. Out: a number, or None where the run has none. The first of `MEASURES` that a sweep is judged by is called by
its metric's name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dflash_exp.compare.runs import Run

LAST_SHARE = 0.1
"""Of the steps, over which `train/loss` is averaged."""


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    name: str
    """As --metric takes it, or a word for the table."""
    title: str
    lower_is_better: bool
    digits: int
    of: Callable[[Run], float | None]
    scale: float = 1.0
    """What the figure is multiplied by where it is shown: 100 for percent."""
    unit: str = ""


def _last(field: str) -> Callable[[Run], float | None]:
    return lambda run: run.last(field)


def _decoded(field: str) -> Callable[[Run], float | None]:
    return lambda run: run.evaluation.get(field)


def composition_share(run: Run) -> float | None:
    """How much of the train loss's variance the steps' composition forecasts."""
    return (run.result.get("dynamics") or {}).get("composition_share")


def whiplash(run: Run) -> float | None:
    """How much less the gradients of steps of two buckets agree than those of one."""
    return ((run.result.get("dynamics") or {}).get("whiplash") or {}).get("contrast")


def train_loss(run: Run) -> float | None:
    """Mean over the last tenth of the steps, each with its weight: one step says mostly which batch it held."""
    begin = int(len(run.buckets) * (1 - LAST_SHARE))
    loss, weight = run.column("train/loss")[begin:], run.column("train/weight")[begin:]
    known = np.isfinite(loss) & (weight > 0)
    return float(np.average(loss[known], weights=weight[known])) if known.any() else None


def tokens_per_s(run: Run) -> float | None:
    """Tokens over the time of all steps."""
    seconds = run.step_s
    known = np.isfinite(seconds)
    return float(run.column("batch/tokens")[known].sum() / seconds[known].sum()) if known.any() else None


def padding_share(run: Run) -> float | None:
    """Of all tokens that were computed."""
    tokens, share = run.column("batch/tokens"), run.column("batch/padding_share")
    known = np.isfinite(tokens) & (share < 1)
    computed = float((tokens[known] / (1 - share[known])).sum())
    return 1 - float(tokens[known].sum()) / computed if computed else None


def wait_share(run: Run) -> float | None:
    """The share of the steps' time in which the drafter waits for features."""
    waits, seconds = run.column("pipeline/drafter_wait_s"), run.step_s
    known = np.isfinite(waits) & np.isfinite(seconds)
    return float(waits[known].sum() / seconds[known].sum()) if known.any() else None


def device_hours(run: Run) -> float | None:
    """Hours of training times devices: ranks x (the drafter's and those that hold the target alone)."""
    seconds = run.result.get("train_s")
    keys = ("topology.nodes", "topology.ranks_per_node", "topology.target_devices")
    nodes, ranks, apart = (run.config.get(key) for key in keys)
    if seconds is None or nodes is None or ranks is None or apart is None:
        return None
    return seconds / 3600 * nodes * ranks * (1 + apart)


def tokens_to(run: Run, level: float) -> float | None:
    """Tokens trained when the probe's loss first falls to a level, interpolated between two probes; None: never."""
    tokens, loss = run.curve("probe/loss")
    below = np.flatnonzero(loss <= level)
    if len(below) == 0:
        return None
    at = int(below[0])
    if at == 0:
        return float(tokens[0])
    share = (loss[at - 1] - level) / (loss[at - 1] - loss[at])
    return float(tokens[at - 1] + share * (tokens[at] - tokens[at - 1]))


MEASURES = (
    Measure("probe/loss", "probe loss", True, 4, _last("probe/loss")),
    Measure("probe/tau_replayed", "τ replayed", False, 3, _last("probe/tau_replayed")),
    Measure("tau_pooled", "τ decoded", False, 3, _decoded("tau_pooled")),
    Measure("composition_share", "composition share", True, 1, composition_share, 100, "%"),
    Measure("whiplash", "whiplash", True, 3, whiplash),
    Measure("throughput/tokens_per_s", "tokens/s", False, 0, tokens_per_s),
    Measure("padding_share", "padding", True, 1, padding_share, 100, "%"),
    Measure("wait_share", "drafter waits", True, 1, wait_share, 100, "%"),
    Measure("device_hours", "device-hours", True, 3, device_hours),
)
"""Rows of the table."""
OTHERS = (
    Measure("probe/tau_teacher_forced", "τ teacher-forced", False, 3, _last("probe/tau_teacher_forced")),
    Measure("tau_macro", "τ decoded, macro", False, 3, _decoded("tau_macro")),
    Measure("speedup", "speed-up", False, 3, _decoded("speedup")),
    Measure("train/loss", "train loss", True, 4, train_loss),
)
"""What a sweep can be judged by beside them."""


def measure(name: str) -> Measure:
    """By the name that --metric takes."""
    return {each.name: each for each in (*MEASURES, *OTHERS)}[name]
