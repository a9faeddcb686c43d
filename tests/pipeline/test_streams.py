"""The path of CUDA with made-up streams: what is launched where, and what it comes after."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch
from dflash_exp.pipeline import streams
from dflash_exp.pipeline.arena import FeatureArena
from dflash_exp.pipeline.line import Lockstep, Overlapped
from dflash_exp.pipeline.stages import Threads
from dflash_exp.pipeline.streams import Landing, StreamedTarget
from dflash_exp.staging import feature_arena

CPU, META = torch.device("cpu"), torch.device("meta")
EMPTY = torch.empty(0, dtype=torch.int64)
BATCH = TokenBatch(BatchPlan(0, 0, 0, 0, 0, np.array([0])), EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)


@dataclass(eq=False)
class Stream:
    """Notes what it was told to come after."""

    device: torch.device
    after: list[Any] = field(default_factory=list)

    def record_event(self) -> Any:
        return Mark(self)


@dataclass(eq=False)
class Mark:
    of: Stream

    def elapsed_time(self, other: Any, /) -> float:
        return 0.0

    def wait(self, stream: Any = None) -> None:
        stream.after.append(self)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Stream]]:
    """Streams of a made-up CUDA; returns what the allocator was told to hold, by its memory, and for which stream."""

    def nothing(*_: object) -> AbstractContextManager[None]:
        return nullcontext()

    told: list[tuple[int, Stream]] = []
    for name, made in {"Stream": Stream, "stream": nothing, "device": nothing, "synchronize": lambda _: None}.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: told.append((self.data_ptr(), stream)))
    return told


def made_by(target: StreamedTarget) -> TargetFeatures:
    features = target(BATCH)
    assert isinstance(features.ready, Mark)
    return features


def test_features_land_in_their_range_after_they_are_there_and_after_whoever_read_there(held) -> None:
    arena, values = FeatureArena(4096, CPU), torch.arange(12.0).view(3, 4)
    features = made_by(StreamedTarget(lambda batch: TargetFeatures(batch, values), CPU))
    reader = Mark(Stream(CPU))
    arena.read_until(arena.at(512, values), reader)
    landing = Landing(CPU, CPU, arena)
    landed = landing(features, 512)
    assert torch.equal(landed.features_PF, values) and torch.equal(arena.at(512, values), values)
    assert isinstance(landed.ready, Mark) and landed.ready.of.after == [features.ready, reader]
    assert held == [(values.data_ptr(), landed.ready.of)], "the target's memory, until it is copied"
    assert landed.read_until is not None
    landed.read_until(reader)
    assert arena.before_writing(512, 1) == [reader]
    held.clear()
    streams.wait_for(landed)
    assert held == [], "the arena is no block of the allocator"


def test_without_a_range_features_stay_where_they_are_or_go_where_the_allocator_says(held) -> None:
    values = torch.arange(12.0).view(3, 4)
    features = made_by(StreamedTarget(lambda batch: TargetFeatures(batch, values), CPU))
    assert Landing(CPU, CPU, FeatureArena(4096, CPU))(features, None) is features
    elsewhere = Landing(CPU, META, None)(features, None)
    assert elsewhere.features_PF.device == META and elsewhere.features_PF.shape == (3, 4)
    assert elsewhere.read_until is None and elsewhere.ready is not features.ready
    held.clear()
    streams.wait_for(features)
    assert [memory for memory, _ in held] == [values.data_ptr()]


def test_the_arena_holds_as_many_of_the_largest_as_may_be_under_way_within_the_bytes_allowed() -> None:
    line = Overlapped(Threads(None, None), 8, 4, 10_000, 20.0)
    assert [feature_arena(line, largest, META).n_bytes for largest in (1000, 5000)] == [4 * 1024, 9728]  # type: ignore
    assert feature_arena(line, 1000, CPU) is None
    assert feature_arena(Lockstep(Threads(None, None)), 1000, META) is None
