"""A run's records to what its batches cost in seconds: the basis of another plan's hours.

In: a run's directory, finished or not, and its plan, made anew from its configuration. Out: `Measured`: coefficients in
seconds of each stage, and how long the line takes for a second of both. The first step is left out: it is cold.
"""

# R records

from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from dflash_exp.plan.cost import StageCosts, Work, fit_costs, in_steps, joined, plan_work
from dflash_exp.plan.epoch import EpochPlan, Planner
from dflash_exp.plan.run_length import EpochSteps
from dflash_exp.run_directory import planned_there
from dflash_exp.telemetry.sinks import read_records


@dataclass(frozen=True)
class Measured:
    """What a run's records say of its speed, on the machine it ran on."""

    costs: StageCosts
    """In seconds."""
    pace: float
    """Seconds of the line for each second that target and drafter were busy: about 1 in lockstep, down to .5 where
    they run side by side."""
    basis: str


def measure(run_dir: Path, planner: Planner, epochs: list[EpochSteps], block_size: int) -> Measured:
    """Fit the costs to the run's records. Raises ValueError where there are too few, or of another plan."""
    path = run_dir / "metrics.jsonl"
    records = read_records(path)[1:] if path.is_file() else []
    if not records:
        raise ValueError(
            f"plan.speed_from must be a run of two steps or more, got none in {path}; give a run that has begun"
        )
    if planned_there(run_dir)["plan_sha256"] != planner.epoch(0).plan_sha256:
        raise ValueError(
            f"plan.speed_from must be a run whose plan can be made again, that of {run_dir} comes out otherwise: its "
            "data, or the way plans are made, changed since; give a newer run"
        )
    steps = np.array([record["step"] for record in records])
    work = steps_work(planner, epochs, block_size, int(steps.max()))
    done = Work(*(term[steps - 1] for term in vars(work).values()))
    target_s, drafter_s = (
        np.array([r[f"pipeline/{stage}_busy_s"] for r in records]) for stage in ("target", "drafter")
    )
    line_s = sum(record["batch/tokens"] / record["throughput/tokens_per_s"] for record in records)
    pace = float(line_s / (target_s.sum() + drafter_s.sum()))
    basis = f"from {len(records)} steps of {run_dir}"
    return Measured(fit_costs(done, target_s, drafter_s), pace, basis)


def steps_work(planner: Planner, epochs: list[EpochSteps], block_size: int, n_steps: int) -> Work:
    """The work of the run's first `n_steps` steps, or a few more; no epoch beyond them is planned."""
    ends = accumulate((part.n_steps for part in epochs), initial=0)
    begun = [part.epoch for part, (begin, _) in zip(epochs, pairwise(ends), strict=True) if begin < n_steps]
    return joined([epoch_work(planner.epoch(epoch), block_size) for epoch in begun])


def epoch_work(plan: EpochPlan, block_size: int) -> Work:
    """The work of each of an epoch's steps."""
    return in_steps(plan_work(plan, block_size), plan.drawn, plan.bounds)
