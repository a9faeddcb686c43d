"""Optimizer steps of which a test names what it is about."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from dflash_exp.messages import ChannelFill, LossSums, StageTime, StepResult, StepTiming, total

Step = tuple[StepResult, StepTiming]
TARGET = StageTime(0.5, 0.0)
NO_CHANNELS: Mapping[str, ChannelFill] = {}


def make_step(
    losses: Sequence[tuple[int, float]] = ((0, 2.0),),
    tokens: int = 100,
    target: StageTime = TARGET,
    channels: Mapping[str, ChannelFill] = NO_CHANNELS,
) -> Step:
    """A step of one second, of a batch of weight 1 for each (bucket, loss); the target is slowest, the rest wait."""
    by_bucket = {bucket: LossSums(loss, 1.0, 1, 2, 1, 1) for bucket, loss in losses}
    buckets = [bucket for bucket, _ in losses]
    result = StepResult(
        epoch=0, sums=total(by_bucket.values()), by_bucket=by_bucket, buckets=buckets, tokens=tokens,
        padded_tokens=tokens, short_step=False, lr=0.01, grad_norm=1.0, clipped=False, skipped=False,
    )  # fmt: skip
    return result, StepTiming(StageTime(0.01, 0.99), target, StageTime(0.25, 0.75), 1.0, channels)


@pytest.fixture
def step() -> Callable[..., Step]:
    return make_step
