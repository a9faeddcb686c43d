"""One of two ranks of a long run in miniature: real gloo, real meetings, a drafter of three numbers, stops and resumes.

`python rank_soak_script.py FOLDER`. Each session goes on from what was saved, on other workers, until a rank chosen at
random is asked to stop, or both lose what came after the last save. At the end every rank writes what it trained.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dflash_exp.drafter.gradient import FlatGradient
from dflash_exp.drafter.loss import BatchSums
from dflash_exp.messages import BatchPlan, LossSums, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.line import Overlapped, run_overlapped
from dflash_exp.pipeline.meeting import Meeting, OwnBatch, checksum_of, room
from dflash_exp.pipeline.stages import Stages, Threads
from dflash_exp.plan.align import Lpt
from dflash_exp.ranks import Alone, Group, Ranks
from tests.lengths import full_or

N_STEPS, N_SESSIONS, SAVE_EVERY = full_or(2000, 280), full_or(50, 7), 5
EMPTY = torch.empty(0, dtype=torch.int64)


def batches_of(step: int) -> list[BatchPlan]:
    """Three batches a step; every seventh step is short and holds one: a rank has none of it."""
    numbers = range(3 * step, 3 * step + (1 if step % 7 == 6 else 3))
    return [BatchPlan(n, 0, step, n % 5, n, np.array([n])) for n in numbers]


class Miniature:
    """All stages of one rank: features are numbers, and the drafter a vector that every step turns a little."""

    def __init__(self, ranks: Ranks, rng: random.Random) -> None:
        self.ranks, self.rng = ranks, rng
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.sums = FlatGradient([self.weight], room(3, ranks.n_ranks))
        self.meeting = Meeting(self.sums, ranks, 3)
        self.own: dict[int, OwnBatch] = {}
        self.trained: list[int] = []
        self.step = 0
        self.stops_at: int | None = None
        self.stop_agreed = False

    def stages(self, n_workers: int) -> Stages:
        return Stages(self.prefetch, [self.target] * n_workers, self, lambda _: 1, lambda _: 1)

    def rest(self) -> None:
        if self.rng.random() < 0.05:
            time.sleep(self.rng.random() * 1e-3)

    def prefetch(self, plan: BatchPlan) -> TokenBatch:
        self.rest()
        return TokenBatch(plan, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def target(self, batch: TokenBatch) -> TargetFeatures:
        self.rest()
        return TargetFeatures(batch, torch.tensor([1.0 / (3 + batch.plan.number)], dtype=torch.float64))

    def accumulate(self, features: TargetFeatures) -> None:
        self.rest()
        number = features.batch.plan.number
        assert self.weight.grad is not None
        self.weight.grad += torch.sin(self.weight.detach()) * features.features_PF
        loss = self.weight.detach().sum() * features.features_PF[0]
        own = BatchSums(loss, torch.tensor(1), torch.tensor(0), 1.0, 1, 1)
        self.own[number - 3 * self.step] = OwnBatch(own, 1, 1)
        self.trained.append(number)

    def meet(self) -> None:
        told = self.meeting.hold(
            self.own, len(batches_of(self.step)), self.step == self.stops_at, checksum_of([self.weight])
        )
        self.own, self.stop_agreed = {}, told.stop
        self.losses = [batch.sums.loss for batch in told.batches]

    def finish(self) -> StepResult:
        with torch.no_grad():
            self.weight -= 1e-3 * self.sums.gradient
        self.sums.clear()
        self.step += 1
        return StepResult(0, LossSums(sum(self.losses), 1.0, 0, 0, 0, 0), {}, [], 1, 1, False, 0.1, 0.0, False, False)

    def state(self) -> tuple[int, Tensor, list[int]]:
        return self.step, self.weight.detach().clone(), list(self.trained)

    def go_back(self, state: tuple[int, Tensor, list[int]]) -> None:
        self.step, self.trained = state[0], list(state[2])
        with torch.no_grad():
            self.weight.copy_(state[1])


def run(ranks: Ranks, stops: bool) -> dict[str, Any]:
    """All steps: what this rank trained, every step's loss, the last weights, and how many sessions it took."""
    shared, own = random.Random(0), random.Random(1 + ranks.rank)
    run = Miniature(ranks, own)
    saved, losses, n_sessions = run.state(), dict[int, float](), 0
    while run.step < N_STEPS:
        n_sessions += 1
        until = min(N_STEPS, run.step + shared.randrange(1, 2 * N_STEPS // N_SESSIONS)) if stops else N_STEPS
        stopping, loses = shared.randrange(ranks.n_ranks), stops and shared.random() < 0.5
        run.stops_at = until - 1 if ranks.rank == stopping else None

        def after(result: StepResult, _: StepTiming) -> bool:
            nonlocal saved
            losses[run.step] = result.sums.loss
            if run.step % SAVE_EVERY == 0:
                saved = run.state()
            return not run.stop_agreed

        left = [batches_of(step) for step in range(run.step, N_STEPS)]
        dealt = [
            tuple(step[i] for i in Lpt().deal(range(len(step)), ranks.n_ranks, np.ones(len(step)))[ranks.rank])
            for step in left
        ]
        line = Overlapped(Threads(1, 1), own.randrange(1, 5), own.randrange(1, 5), 100, 60.0)
        run_overlapped(dealt, run.stages(own.randrange(1, 4)), line, after, lambda shown: sys.exit(shown))
        if loses and run.step < N_STEPS:
            run.go_back(saved)
        saved = run.state()
    return {
        "trained": run.trained, "losses": [losses[step] for step in range(1, N_STEPS + 1)],
        "weight": run.weight.tolist(), "sessions": n_sessions,
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    ranks = Group(rank, 2, torch.device("cpu"), timeout_s=60.0)
    (folder / f"rank-{rank}.json").write_text(json.dumps(run(ranks, stops=True)))
    if rank == 0:
        (folder / "alone.json").write_text(json.dumps(run(Alone(), stops=False)))
