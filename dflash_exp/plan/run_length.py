"""How long a run is: exactly one of epochs, steps and tokens, resolved to steps of epochs.

Optimizer steps never straddle epochs, so a run is a list of epochs with the number of steps to take of each; only
the last may be cut. Every epoch is composed anew and may have another number of steps, so each is planned (a few
ms for thousands of sequences) to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from dflash_exp.plan.epoch import EpochPlan


@dataclass(frozen=True)
class RunLength:
    """Exactly one is given; the others are None."""

    epochs: int | None
    steps: int | None
    """Optimizer steps."""
    tokens: int | None
    """Real tokens of the input, padding not counted; the step that reaches the number is the last."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if len(given) != 1:
            got = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
            raise ValueError(f"epochs|steps|tokens must be given exactly once, got {got}; set the others to null")
        for name, value in given.items():
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}; a run takes at least one step")


@dataclass(frozen=True)
class EpochSteps:
    """The first `n_steps` optimizer steps of epoch `epoch`."""

    epoch: int
    n_steps: int


def resolve_length(length: RunLength, plan_epoch: Callable[[int], EpochPlan]) -> list[EpochSteps]:
    """The epochs of a run, ascending from 0, each with the number of steps to take; `plan_epoch` is Planner.epoch."""
    if length.epochs is not None:
        return [EpochSteps(epoch, plan_epoch(epoch).n_steps) for epoch in range(length.epochs)]
    taken: list[EpochSteps] = []
    wanted = length.steps if length.tokens is None else length.tokens
    while wanted is not None and wanted > 0:
        plan = plan_epoch(len(taken))
        amounts = plan.step_sums(plan.sequences.lengths) if length.tokens else np.ones(plan.n_steps, dtype=np.int64)
        reached = np.cumsum(amounts, dtype=np.int64)
        n_steps = min(int(np.searchsorted(reached, wanted)) + 1, plan.n_steps)
        taken.append(EpochSteps(plan.epoch, n_steps))
        wanted -= int(reached[n_steps - 1])
    return taken
