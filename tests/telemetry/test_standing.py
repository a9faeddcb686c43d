"""Where a run stands, worked out by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dflash_exp.messages import LossSums, StageTime, StepResult, StepTiming
from dflash_exp.telemetry.standing import BatchSeen, Recent, StageShare, Tally, epoch_share, last_batches, stage_share

MakeStep = Callable[..., tuple[StepResult, StepTiming]]


def test_before_the_first_step_nothing_is_known_but_where_the_run_goes_on() -> None:
    standing = Tally([40, 60], lambda: 7.0, first_step=40).standing()
    assert (standing.step, standing.n_steps, standing.loss, standing.left_s) == (40, 100, None, None)
    assert (standing.tokens_per_s, standing.recent) == (0.0, Recent(0, 0.0, (), {}, ()))


def test_rate_and_time_left_are_over_the_steps_of_this_process(step: MakeStep) -> None:
    now_s = [1000.0]
    tally = Tally([150], lambda: now_s[0], first_step=100)
    for number in range(101, 111):
        now_s[0] += 2.0
        tally.add(number, *step(tokens=300), 3.5)
    standing = tally.standing()
    assert (standing.tokens_per_s, standing.left_s, standing.elapsed_s) == (150.0, 80.0, 20.0)
    assert (standing.step, standing.loss, standing.probe_loss) == (110, 2.0, 3.5)


def test_between_two_steps_only_the_clock_goes_on(step: MakeStep) -> None:
    now_s = [0.0]
    tally = Tally([10], lambda: now_s[0], first_step=0)
    now_s[0] = 2.0
    tally.add(1, *step(), None)
    now_s[0] = 50.0
    standing = tally.standing()
    assert (standing.elapsed_s, standing.left_s, standing.tokens_per_s) == (50.0, 18.0, 50.0)


@pytest.mark.parametrize(
    ("n_done", "expected"), [(0, (1, 0.0)), (1, (1, 0.25)), (4, (1, 1.0)), (5, (2, 0.5)), (6, (2, 1.0))]
)
def test_an_epoch_s_last_step_completes_it_and_the_next_begins_another(n_done: int, expected: tuple) -> None:
    assert epoch_share(n_done, [4, 6]) == expected


def test_several_workers_share_the_time_that_they_have_together() -> None:
    times = [StageTime(2.0, 1.0), StageTime(4.0, 2.0)]
    assert stage_share("target", times, clock_s=3.0) == StageShare("target", 3.0, 6 / 9, 3 / 9)


def test_a_stage_of_a_for_loop_is_neither_busy_nor_waiting_while_another_runs() -> None:
    assert stage_share("drafter", [StageTime(1.0, 0.0)], clock_s=4.0) == StageShare("drafter", 1.0, 0.25, 0.0)
    assert stage_share("drafter", [StageTime(0.0, 0.0)], clock_s=0.0) == StageShare("drafter", 0.0, 0.0, 0.0)


def test_time_is_that_of_the_last_hundred_steps(step: MakeStep) -> None:
    tally = Tally([150], lambda: 0.0, first_step=0)
    for number in range(1, 151):
        tally.add(number, *step(target=StageTime(9.0 if number <= 50 else 0.75, 0.25)), None)
    recent = tally.standing().recent
    assert (recent.n_steps, recent.step_s) == (100, 1.0)
    assert [stage.name for stage in recent.stages] == ["prefetch", "target", "drafter"]
    assert recent.stages[1] == StageShare("target", 0.75, 0.75, 0.25)


def test_a_batch_has_its_bucket_s_loss_in_its_own_step(step: MakeStep) -> None:
    nothing = LossSums(0.0, 0.0, 0, 0, 0, 1)
    older, _ = step(losses=[(1, 2.0)])
    mixed = replace(older, buckets=[1, 5, 1], by_bucket={1: LossSums(6.0, 2.0, 1, 2, 1, 1), 5: nothing})
    assert last_batches([older, mixed]) == tuple(BatchSeen(*pair) for pair in [(1, 2.0), (1, 3.0), (5, None), (1, 3.0)])


def test_of_many_batches_the_newest_are_kept(step: MakeStep) -> None:
    results = [step(losses=[(bucket, 0.0) for bucket in range(7)])[0] for _ in range(100)]
    assert [batch.bucket for batch in last_batches(results)] == [number % 7 for number in range(700)][-240:]
