"""Where a run stands: the figures of one moment, for whoever draws them.

In: every optimizer step. Out: a `Standing`, asked for from any thread. A step is only put by (a microsecond or two);
sums are made when somebody looks, over the last 100 steps at most. Rates and the time left are over the steps of this
process, so that a resumed run does not count the hours in which it stood still.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

from dflash_exp.messages import ChannelFill, LossSums, StageTime, StepResult, StepTiming

RECENT_STEPS = 100
RECENT_BATCHES = 240
"""More than a terminal is wide."""


@dataclass(frozen=True)
class StageShare:
    """What a stage did with its time."""

    name: str
    busy_s: float
    """Mean seconds a step, its workers together."""
    busy_share: float
    """Of what its workers had: their busy and waiting seconds, or the clock's where those are fewer."""
    wait_share: float


@dataclass(frozen=True)
class BatchSeen:
    """One trained batch."""

    bucket: int
    loss: float | None
    """Mean loss of that bucket in that step; None where nothing counts."""


@dataclass(frozen=True)
class Recent:
    """The last steps, together; all empty before the first."""

    n_steps: int
    step_s: float
    """Mean."""
    stages: tuple[StageShare, ...]
    channels: Mapping[str, ChannelFill]
    """As the last step left them."""
    batches: tuple[BatchSeen, ...]
    """In the order of training, the newest last."""


@dataclass(frozen=True)
class Standing:
    """A run at one moment."""

    step: int
    """Optimizer steps done, in this process and those before."""
    n_steps: int
    epoch: int
    """From 1."""
    n_epochs: int
    epoch_share: float
    """Of the steps that the run takes in this epoch."""
    loss: float | None
    """The last step's; None where nothing counts."""
    probe_loss: float | None
    tokens_per_s: float
    elapsed_s: float
    """Of this process."""
    left_s: float | None
    """None before the first step."""
    recent: Recent


class Tally:
    """Takes every step; says where the run stands. `epoch_steps` are the run's steps in each of its epochs."""

    def __init__(self, epoch_steps: Sequence[int], clock: Callable[[], float], first_step: int) -> None:
        self._epoch_ends = list(accumulate(epoch_steps))
        self._clock = clock
        self._first_step = self._step = first_step
        self._started_s = self._added_s = clock()
        self._tokens = 0
        self._probe_loss: float | None = None
        self._recent: deque[tuple[StepResult, StepTiming]] = deque(maxlen=RECENT_STEPS)
        self._lock = Lock()  # who draws iterates over the deque that the training thread appends to

    def add(self, step: int, result: StepResult, timing: StepTiming, probe_loss: float | None) -> None:
        """Step number `step`, counted from 1 over the whole run, is done."""
        with self._lock:
            self._step, self._probe_loss, self._added_s = step, probe_loss, self._clock()
            self._tokens += result.tokens
            self._recent.append((result, timing))

    def standing(self) -> Standing:
        """The run as of its last step; only `elapsed_s` goes on in between."""
        with self._lock:
            step, tokens, probe_loss, steps = self._step, self._tokens, self._probe_loss, tuple(self._recent)
            active_s = self._added_s - self._started_s
        n_done, n_steps = step - self._first_step, self._epoch_ends[-1]
        epoch, share = epoch_share(step, self._epoch_ends)
        return Standing(
            step=step,
            n_steps=n_steps,
            epoch=epoch,
            n_epochs=len(self._epoch_ends),
            epoch_share=share,
            loss=mean_loss(steps[-1][0].sums) if steps else None,
            probe_loss=probe_loss,
            tokens_per_s=tokens / active_s if active_s else 0.0,
            elapsed_s=self._clock() - self._started_s,
            left_s=active_s / n_done * (n_steps - step) if n_done else None,
            recent=recent(steps),
        )


def epoch_share(step: int, epoch_ends: Sequence[int]) -> tuple[int, float]:
    """The epoch (from 1) of the last of `step` steps, and the share of its steps done: an epoch's last step is 1.0."""
    epoch = bisect_left(epoch_ends, step)
    begin = epoch_ends[epoch - 1] if epoch else 0
    return epoch + 1, (step - begin) / (epoch_ends[epoch] - begin)


def mean_loss(sums: LossSums) -> float | None:
    """None where nothing counts."""
    return sums.loss / sums.weight if sums.weight else None


def recent(steps: Sequence[tuple[StepResult, StepTiming]]) -> Recent:
    """What the given steps, oldest first, were like together."""
    if not steps:
        return Recent(0, 0.0, (), {}, ())
    timings = [timing for _, timing in steps]
    step_s = sum(timing.step_s for timing in timings)
    stages = (
        stage_share("prefetch", [timing.prefetch for timing in timings], step_s),
        stage_share("target", [timing.target for timing in timings], step_s),
        stage_share("drafter", [timing.drafter for timing in timings], step_s),
    )
    batches = last_batches([result for result, _ in steps])
    return Recent(len(steps), step_s / len(steps), stages, timings[-1].channels, batches)


def stage_share(name: str, times: Sequence[StageTime], clock_s: float) -> StageShare:
    """A stage's share of its time, over steps that took `clock_s` seconds together."""
    busy_s, wait_s = sum(time.busy_s for time in times), sum(time.wait_s for time in times)
    had_s = max(busy_s + wait_s, clock_s) or 1.0
    return StageShare(name, busy_s / len(times), busy_s / had_s, wait_s / had_s)


def last_batches(results: Sequence[StepResult]) -> tuple[BatchSeen, ...]:
    """The newest `RECENT_BATCHES` of some steps, oldest first."""
    newest_first: list[BatchSeen] = []
    for result in reversed(results):
        losses = {bucket: mean_loss(sums) for bucket, sums in result.by_bucket.items()}
        newest_first += [BatchSeen(bucket, losses.get(bucket)) for bucket in reversed(result.buckets)]
        if len(newest_first) >= RECENT_BATCHES:
            break
    return tuple(reversed(newest_first[:RECENT_BATCHES]))
