"""What happens between two optimizer steps: measure, record, show, save, and whether to go on.

In: what a step did and where its time went. Out: a line of metrics.jsonl, now and then a probe and a checkpoint, and
False when the run is to stop here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from dflash_exp.messages import StageTime, StepRecord, StepResult, StepTiming
from dflash_exp.telemetry.dynamics.watch import Dynamics
from dflash_exp.telemetry.metrics import Metrics, step_metrics, timing_metrics
from dflash_exp.telemetry.standing import epoch_share

NONE = StageTime(0.0, 0.0)


@dataclass
class Counters:
    """How far a run has come: the counters that a checkpoint keeps."""

    step: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    trained_s: float = 0.0
    """Over all sessions."""
    first_probe: Metrics = field(default_factory=dict)
    probe: Metrics = field(default_factory=dict)
    final: Metrics = field(default_factory=dict)
    """The newest record."""

    def as_json(self) -> dict[str, Any]:
        """What `Counters(**...)` takes back."""
        return asdict(self)


class RecordSink(Protocol):
    """Where records go."""

    def write(self, record: StepRecord) -> None: ...


@dataclass(frozen=True)
class Hands:
    """Who does what is due."""

    probe: Callable[[], Metrics]
    probe_loss: Callable[[], float | None]
    """Of the drafter as it is, whatever is due: for a jump; None where nothing counts in the probe."""
    probe_gradients: Callable[[], Mapping[int, list[float]]]
    """Sketches of the gradients of each bucket's part of the probe."""
    sinks: list[RecordSink]
    show: Callable[[int, StepResult, StepTiming, float | None], None]
    save: Callable[[Counters], None]
    """Begins a checkpoint; returns when the training may go on."""
    trace: Callable[[int], None]
    """Called with the steps done."""
    asked_to_stop: Callable[[], bool]


@dataclass(frozen=True)
class Schedule:
    """When it is due, in steps of the run; 0: never, except after the last step."""

    epoch_steps: list[int]
    """Optimizer steps that the run takes in each of its epochs."""
    probe_every: int
    save_every: int

    @property
    def n_steps(self) -> int:
        """Of the whole run."""
        return sum(self.epoch_steps)

    def epoch_share(self, step: int) -> float:
        """Of the epoch's steps that the run takes, those done after the run's step `step`, in (0, 1]."""
        return epoch_share(step, list(accumulate(self.epoch_steps)))[1]

    def probes(self, step: int) -> bool:
        """Also after the last step, unless the probe is off."""
        return self.probe_every > 0 and (step % self.probe_every == 0 or step == self.n_steps)

    def compares(self, step: int) -> bool:
        """From the middle of the run on gradients may be compared where a probe is due: it is done once."""
        return self.probes(step) and 2 * step >= self.n_steps

    def saves(self, step: int) -> bool:
        """Always after the last step."""
        return step == self.n_steps or (self.save_every > 0 and step % self.save_every == 0)


@dataclass(frozen=True)
class Spent:
    """Where the time of a session's steps went on one rank, in seconds."""

    n_steps: int = 0
    steps_s: float = 0.0
    """What is done between two steps apart."""
    prefetch: StageTime = NONE
    target: StageTime = NONE
    """Its loops together."""
    drafter: StageTime = NONE
    all_reduce_s: float = 0.0
    """Until all ranks had come, and their gradients were added up."""

    def after(self, timing: StepTiming) -> "Spent":
        """One step more."""
        return Spent(
            self.n_steps + 1, self.steps_s + timing.step_s, self.prefetch + timing.prefetch,
            self.target + timing.target, self.drafter + timing.drafter, self.all_reduce_s + timing.meeting_s,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Flat, as result.json has it; what was host-bound is null where there is no CUDA device."""
        stages = {"prefetch": self.prefetch, "target": self.target, "drafter": self.drafter}
        flat = {f"{name}_{what}": time_s for name, stage in stages.items() for what, time_s in asdict(stage).items()}
        del flat["prefetch_host_bound_s"]  # it launches nothing
        flat = {"steps_s": self.steps_s, **flat, "all_reduce_s": self.all_reduce_s}
        rounded = {name: None if time_s is None else round(time_s, 3) for name, time_s in flat.items()}
        return {"n_steps": self.n_steps, **rounded}


def over_ranks(by_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ranks' `Spent.as_json` added up; null where it is null on any."""
    sums = {name: [spent[name] for spent in by_rank] for name in by_rank[0]}
    return {name: None if None in values else round(sum(values), 3) for name, values in sums.items()}


class BetweenSteps:
    """Called by the line after every optimizer step, while the drafter stands still."""

    def __init__(self, counters: Counters, schedule: Schedule, hands: Hands, dynamics: Dynamics) -> None:
        self.counters = counters
        self._dynamics = dynamics
        self._schedule = schedule
        self._hands = hands
        self._before_s = counters.trained_s
        self._started_s = time.monotonic()
        self._stall: Metrics = {}
        self.spent = Spent()
        hands.trace(counters.step)

    def __call__(self, result: StepResult, timing: StepTiming) -> bool:
        """True: go on."""
        now, schedule = self.counters, self._schedule
        self.spent = self.spent.after(timing)
        now.step += 1
        now.tokens += result.tokens
        now.skipped_steps += result.skipped
        record = step_metrics(result) | self._dynamics.after_step(now.step, result) | self._probed(now.step)
        now.trained_s = self._before_s + time.monotonic() - self._started_s
        eta_s = now.trained_s / now.step * (schedule.n_steps - now.step)
        record |= timing_metrics(timing, result.tokens, schedule.epoch_share(now.step), eta_s) | self._stall
        now.final, self._stall = record, {}
        for sink in self._hands.sinks:
            sink.write(StepRecord(now.step, now.trained_s, record))
        self._hands.show(now.step, result, timing, now.probe.get("probe/loss"))
        stops = self._hands.asked_to_stop()
        if stops or schedule.saves(now.step):
            self._save()
        self._hands.trace(now.step)
        return not stops

    def _probed(self, step: int) -> Metrics:
        """The probe that is due, and the one that a jump asks for."""
        now, dynamics, due = self.counters, self._dynamics, self._schedule.probes(step)
        if due:
            now.probe = self._hands.probe()
        metrics: Metrics = dict(now.probe) if due else {}
        if dynamics.to_judge:
            at_once = self._hands.probe_loss if self._schedule.probe_every else lambda: None
            metrics |= dynamics.judge(step, now.probe.get("probe/loss") if due else at_once())
        if due and now.probe.get("probe/loss") is not None:
            dynamics.probed(step, now.probe["probe/loss"])
        if self._schedule.compares(step) and dynamics.conflict is None:
            dynamics.compare_gradients(self._hands.probe_gradients())
        return metrics

    def _save(self) -> None:
        """What the save cost the training is part of the next step's record."""
        started_s = time.monotonic()
        self._hands.save(self.counters)
        self._stall = {"checkpoint/stall_s": round(time.monotonic() - started_s, 6)}
