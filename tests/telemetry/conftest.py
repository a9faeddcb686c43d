"""Optimizer steps of which a test names what it is about, and W&B clients without a past."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import wandb

from dflash_exp.messages import ChannelFill, LossSums, StageTime, StepResult, StepTiming, total
from tests.telemetry.fake_wandb_api import FakeWandbApi
from tests.telemetry.wandb_sessions import forget, meet

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
    return result, StepTiming(StageTime(0.01, 0.99), target, StageTime(0.25, 0.75), 1.0, channels, 0.0)


@pytest.fixture
def step() -> Callable[..., Step]:
    return make_step


@pytest.fixture
def wandb_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client without a past, and without a process when the test is over."""
    forget(monkeypatch, tmp_path / "home")
    yield
    wandb.teardown()


@pytest.fixture
def wandb_api(wandb_client: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandbApi]:
    """A server that is read from and takes reports, which the client knows and has the key to."""
    with FakeWandbApi() as fake:
        meet(fake.url, monkeypatch)
        yield fake


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"
