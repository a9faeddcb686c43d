"""Between two steps: what is due when, what is counted, and what a checkpoint cost is told once."""

from collections.abc import Callable

import pytest

from dflash_exp.between_steps import BetweenSteps, Counters, Hands, Schedule, Spent
from dflash_exp.messages import LossSums, StageTime, StepRecord, StepResult, StepTiming
from dflash_exp.summary import time_line
from dflash_exp.telemetry.dynamics.watch import Dynamics
from dflash_exp.telemetry.metrics import Metrics

NONE = StageTime(0.0, 0.0)
TIMING = StepTiming(NONE, NONE, NONE, 1.0, {}, 0.0)


def result(skipped: bool = False) -> StepResult:
    sums = LossSums(2.0, 1.0, 1, 1, 1, 1)
    return StepResult(0, sums, {0: sums}, [0], 10, 16, False, 0.1, 1.0, False, skipped)


class Fakes:
    """All hands: notes what they were asked."""

    def __init__(self, stop_at: int = 10**9) -> None:
        self.records: list[StepRecord] = []
        self.probed: list[int] = []
        self.saved: list[int] = []
        self.traced: list[int] = []
        self.shown: list[float | None] = []
        self.stop_at = stop_at
        self.counters = Counters()

    def write(self, record: StepRecord) -> None:
        self.records.append(record)

    def close(self, status: str) -> None:
        raise AssertionError("the sinks are closed by who opened them")

    def probe(self) -> Metrics:
        self.probed.append(self.counters.step)
        return {"probe/loss": 3.0}

    def hands(self) -> Hands:
        show: Callable[[int, StepResult, StepTiming, float | None], None] = lambda *a: self.shown.append(a[3])  # noqa: E731
        return Hands(
            probe=self.probe,
            probe_loss=lambda: 3.0,
            probe_gradients=lambda: {0: [1.0]},
            sinks=[self],
            show=show,
            save=lambda counters: self.saved.append(counters.step),
            trace=self.traced.append,
            asked_to_stop=lambda: self.counters.step >= self.stop_at,
        )


def steps(fakes: Fakes, schedule: Schedule, n_steps: int) -> list[bool]:
    between = BetweenSteps(fakes.counters, schedule, fakes.hands(), Dynamics(1, 0))
    return [between(result(skipped=i == 1), TIMING) for i in range(n_steps)]


def test_probe_and_checkpoint_come_when_due_and_after_the_last_step() -> None:
    fakes = Fakes()
    assert all(steps(fakes, Schedule([4, 3], probe_every=3, save_every=2), 7))
    assert fakes.probed == [3, 6, 7] and fakes.saved == [2, 4, 6, 7]
    assert [r.step for r in fakes.records] == list(range(1, 8)) and fakes.traced == list(range(8))
    assert [r.step for r in fakes.records if "probe/loss" in r.metrics] == [3, 6, 7]
    assert fakes.shown == [None, None, 3.0, 3.0, 3.0, 3.0, 3.0]


def test_zero_is_never_but_a_run_s_end_is_always_saved() -> None:
    fakes = Fakes()
    steps(fakes, Schedule([5], probe_every=0, save_every=0), 5)
    assert fakes.probed == [] and fakes.saved == [5]


def test_a_stop_saves_where_it_is_and_ends_the_line() -> None:
    fakes = Fakes(stop_at=3)
    assert steps(fakes, Schedule([9], probe_every=0, save_every=0), 3) == [True, True, False]
    assert fakes.saved == [3]


def test_counters_add_up_and_skipped_steps_are_counted() -> None:
    fakes = Fakes()
    steps(fakes, Schedule([9], probe_every=0, save_every=0), 4)
    now = fakes.counters
    assert (now.step, now.tokens, now.skipped_steps) == (4, 40, 1)
    assert Counters(**now.as_json()) == now


def test_the_share_is_of_the_epoch_and_begins_anew_with_each() -> None:
    schedule = Schedule([4, 2], probe_every=0, save_every=0)
    assert [schedule.epoch_share(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 0.5, 1.0]
    assert schedule.n_steps == 6


def test_what_a_save_cost_stands_in_the_next_record_alone() -> None:
    fakes = Fakes()
    steps(fakes, Schedule([9], probe_every=0, save_every=2), 5)
    assert [r.step for r in fakes.records if "checkpoint/stall_s" in r.metrics] == [3, 5]


def test_a_resumed_run_counts_on() -> None:
    fakes = Fakes()
    fakes.counters.step, fakes.counters.tokens, fakes.counters.trained_s = 4, 100, 50.0
    steps(fakes, Schedule([9], probe_every=0, save_every=0), 1)
    assert fakes.records[0].step == 5 and fakes.counters.tokens == 110
    assert fakes.records[0].time_s == pytest.approx(50.0, abs=5.0)


def test_where_the_time_went_is_added_up_over_the_steps() -> None:
    stages = [StageTime(0.25 * k, 0.5 * k) for k in (1, 2, 4)]
    spent = Spent().after(StepTiming(*stages, step_s=2.0, channels={}, meeting_s=0.125))
    twice = spent.after(StepTiming(*stages, step_s=1.0, channels={}, meeting_s=0.25)).as_json()
    assert twice == {
        "n_steps": 2, "steps_s": 3.0, "prefetch_busy_s": 0.5, "prefetch_wait_s": 1.0, "target_busy_s": 1.0,
        "target_wait_s": 2.0, "drafter_busy_s": 2.0, "drafter_wait_s": 4.0, "all_reduce_s": 0.375,
    }  # fmt: skip
    assert time_line(twice, 1, 2) == (
        "rank 1: target busy 33 %, drafter busy 67 %, waiting for features 133 %, all-reduce 12 % of the steps"
    )
    assert time_line(Spent().as_json(), 0, 1).startswith("target busy 0 %")
