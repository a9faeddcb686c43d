"""Between two steps: what is due when, what is counted, and what a checkpoint cost is told once."""

from collections.abc import Callable

import pytest

from dflash_exp.between_steps import BetweenSteps, Counters, Hands, Schedule, Spent, over_ranks
from dflash_exp.messages import LossSums, StageTime, StepRecord, StepResult, StepTiming
from dflash_exp.summary import time_lines
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


def test_where_the_time_went_is_added_up_over_the_steps_and_the_ranks() -> None:
    stages = [StageTime(0.25 * k, 0.5 * k) for k in (1, 2, 4)]
    spent = Spent().after(StepTiming(*stages, step_s=2.0, channels={}, meeting_s=0.125))
    twice = spent.after(StepTiming(*stages, step_s=1.0, channels={}, meeting_s=0.25)).as_json()
    assert twice == {
        "n_steps": 2, "steps_s": 3.0, "prefetch_busy_s": 0.5, "prefetch_wait_s": 1.0, "target_busy_s": 1.0,
        "target_wait_s": 2.0, "target_host_bound_s": None, "drafter_busy_s": 2.0, "drafter_wait_s": 4.0,
        "drafter_host_bound_s": None, "all_reduce_s": 0.375,
    }  # fmt: skip
    shares = "target busy 33 %, drafter busy 67 %, waiting for features 133 %"
    assert time_lines(over_ranks([twice]), [twice]) == [f"{shares} of the steps"]
    other = twice | {"steps_s": 1.0, "all_reduce_s": 0.625}
    both = over_ranks([twice, other])
    assert (both["steps_s"], both["drafter_busy_s"], both["all_reduce_s"]) == (4.0, 4.0, 1.0)
    assert time_lines(both, [twice, other]) == [
        "all ranks: target busy 50 %, drafter busy 100 %, waiting for features 200 %, all-reduce 25 % of the steps",
        f"rank 0: {shares}, all-reduce 12 %",
        "rank 1: target busy 100 %, drafter busy 200 %, waiting for features 400 %, all-reduce 62 %",
    ]
    none = Spent().as_json()
    assert time_lines(none, [none])[0].startswith("target busy 0 %")


def test_host_bound_time_is_shown_where_it_is_known_and_is_known_of_all_ranks_or_of_none() -> None:
    target, drafter = StageTime(1.0, 0.0, host_bound_s=0.5), StageTime(2.0, 1.0, host_bound_s=0.0)
    timing = StepTiming(NONE, target, drafter, step_s=4.0, channels={}, meeting_s=0.0)
    spent = Spent().after(timing).after(timing).as_json()
    assert (spent["target_host_bound_s"], spent["drafter_host_bound_s"]) == (1.0, 0.0)
    assert time_lines(spent, [spent]) == [
        "target busy 25 %, target host-bound 12 %, drafter busy 50 %, drafter host-bound 0 %, "
        "waiting for features 25 % of the steps"
    ]
    on_a_cpu = spent | {"target_host_bound_s": None}
    assert over_ranks([spent, on_a_cpu])["target_host_bound_s"] is None
    assert over_ranks([spent, spent])["target_host_bound_s"] == 2.0


def test_a_step_in_which_nothing_was_launched_takes_nothing_away_from_what_is_known() -> None:
    assert StageTime(1.0, 2.0, 0.25) + StageTime(4.0, 8.0) == StageTime(5.0, 10.0, 0.25)
    assert NONE + StageTime(1.0, 0.0, 0.5) + StageTime(1.0, 0.0, 0.25) == StageTime(2.0, 0.0, 0.75)
    assert (NONE + NONE).host_bound_s is None
