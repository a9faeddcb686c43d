"""Features in memory that is used again: no byte of them changes before the drafter has read it. With tensors of a CPU
and a drafter whose device is as late as can be; and, where there is one, on a device."""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from dflash_exp.messages import BatchPlan, Launch, LossSums, Mark, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline import drafter_train
from dflash_exp.pipeline.arena import ALIGNED, FeatureArena, rounded
from dflash_exp.pipeline.line import Overlapped, run_overlapped
from dflash_exp.pipeline.stages import Stages, Threads
from dflash_exp.pipeline.streams import Landing, StreamedTarget, wait_for

EMPTY = torch.empty(0, dtype=torch.int64)
CPU = torch.device("cpu")


@dataclass
class Passed:
    """A mark; it is passed when somebody waits for it, and then what stands before it is done."""

    work: Any = None
    waited: list[Any] = field(default_factory=list)

    def elapsed_time(self, end_event: Any) -> float:
        return 0.0

    def wait(self, stream: Any = None) -> None:
        self.waited.append(stream)
        if self.work is not None:
            self.work()


def test_a_tensor_lies_in_its_range_in_its_own_format_and_shape() -> None:
    arena, like = FeatureArena(4 * ALIGNED, CPU), torch.arange(24, dtype=torch.bfloat16).view(4, 6)
    landed = arena.at(ALIGNED, like)
    landed.copy_(like)
    assert torch.equal(landed, like) and landed.dtype is torch.bfloat16
    assert landed.data_ptr() - arena.memory.data_ptr() == ALIGNED
    assert arena.n_bytes == 4 * ALIGNED and [rounded(n) for n in (1, 512, 513)] == [512, 512, 1024]


def test_a_writer_waits_for_all_who_read_where_it_writes_and_for_nobody_else() -> None:
    arena = FeatureArena(1000, CPU)
    first, second, third = Passed(), Passed(), Passed()
    for begin, mark in ((0, first), (100, second), (200, third)):
        arena.read_until(arena.at(begin, torch.empty(100, dtype=torch.uint8)), mark)
    assert arena.before_writing(300, 700) == []
    assert arena.before_writing(50, 100) == [first, second]
    assert arena.before_writing(50, 100) == [], "who writes there later comes after the one who waited"
    assert arena.before_writing(0, 60) == [first], "the part that nobody has written to"
    assert arena.before_writing(0, 1000) == [second, third]
    assert arena.before_writing(0, 1000) == []


class Late:
    """Stages whose drafter reads an item's features no sooner than somebody waits for it, or at the step's end."""

    def __init__(self, sizes: list[int], arena: FeatureArena | None) -> None:
        self.sizes, self.arena = sizes, arena
        self.lock = threading.Lock()
        self.launched: list[tuple[int, torch.Tensor, Passed]] = []
        self.right: dict[int, bool] = {}
        self.in_arena: set[int] = set()

    def prefetch(self, plan: BatchPlan) -> TokenBatch:
        return TokenBatch(plan, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def target(self, batch: TokenBatch) -> TargetFeatures:
        number = batch.plan.number
        return TargetFeatures(batch, torch.full((self.sizes[number],), number % 251, dtype=torch.uint8))

    def land(self, features: TargetFeatures, begin: int | None) -> TargetFeatures:
        if begin is None or self.arena is None:
            return features
        arena, source = self.arena, features.features_PF
        for mark in arena.before_writing(begin, source.nbytes):
            mark.wait()
        landed = arena.at(begin, source)
        landed.copy_(source)
        self.in_arena.add(features.batch.plan.number)
        return replace(features, features_PF=landed, read_until=lambda mark: arena.read_until(landed, mark))

    def accumulate(self, features: TargetFeatures) -> None:
        number, memory, mark = features.batch.plan.number, features.features_PF, Passed()
        mark.work = lambda: self.read(number)
        with self.lock:
            self.launched.append((number, memory, mark))
        if features.read_until is not None:
            features.read_until(mark)

    def read(self, last: int) -> None:
        """A device works in order: all up to that item is read now."""
        with self.lock:
            while self.launched and self.launched[0][0] <= last:
                number, memory, _ = self.launched.pop(0)
                self.right[number] = bool((memory == number % 251).all()) and len(memory) == self.sizes[number]

    def meet(self) -> None:
        self.read(len(self.sizes))

    def finish(self) -> StepResult:
        return StepResult(0, LossSums(0.0, 0.0, 0, 0, 0, 0), {}, [], 1, 1, False, 0.1, 1.0, False, False)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("workers", [1, 3])
def test_the_drafter_reads_what_the_target_made_however_late_and_an_item_larger_than_all_passes(
    seed: int, workers: int
) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 70, 60).tolist()
    sizes[17] = 200  # larger than the arena
    arena = FeatureArena(100, CPU)
    made = Late(sizes, arena)
    plans = [BatchPlan(n, 0, n // 12, 0, n, np.array([n])) for n in range(len(sizes))]
    steps = [tuple(plans[i : i + 12]) for i in range(0, len(plans), 12)]
    bytes_of = lambda batch: sizes[batch.plan.number]  # noqa: E731
    stages = Stages(
        made.prefetch, [made.target] * workers, made, lambda _: 1, bytes_of, [made.land] * workers, arena.n_bytes
    )
    fills = list[int]()

    def after_step(_: StepResult, timing: StepTiming) -> bool:
        fills.append(timing.channels["features"].bytes)
        return True

    run_overlapped(steps, stages, Overlapped(Threads(None, None), 4, 5, 10_000, 20.0), after_step, pytest.fail)
    assert made.right == dict.fromkeys(range(60), True)
    assert made.in_arena == set(range(60)) - {17}
    assert len(fills) == 5 and all(fill <= 100 for fill in fills)


def test_the_trainer_tells_the_memory_when_its_own_work_on_the_batch_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done, told = Passed(), list[Mark]()
    launch = Launch(0.1, Passed(), done, ahead=False)
    monkeypatch.setattr(drafter_train, "launched", lambda device, work: (work(), launch))
    trainer = drafter_train.DrafterTrainer.__new__(drafter_train.DrafterTrainer)
    trainer._done = []
    order = list[str]()
    trainer._step = type("Step", (), {"accumulate": lambda self, features: order.append("launched")})()  # type: ignore
    trainer._reports = drafter_train.Reports(lambda _: order.append("reported"), print, lambda: False)
    batch = TokenBatch(BatchPlan(0, 0, 0, 0, 0, np.array([0])), EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def read_until(mark: Mark) -> None:
        order.append("told")
        told.append(mark)

    assert trainer.accumulate(TargetFeatures(batch, EMPTY, read_until=read_until)) is launch
    assert told == [done] and order == ["launched", "told", "reported"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_drafter_reads_what_the_target_made_however_late() -> None:
    device, draw = torch.device("cuda", 0), np.random.default_rng(0)
    sizes = draw.integers(1, 70_000, 60).tolist()
    arena, slow = FeatureArena(100 * 1024, device), torch.zeros(4096, 4096, device=device)
    read: dict[int, torch.Tensor] = {}

    class Drafter(Late):
        def accumulate(self, features: TargetFeatures) -> None:
            wait_for(features)
            torch.mm(slow, slow)
            read[features.batch.plan.number] = features.features_PF.clone()
            if features.read_until is not None:
                features.read_until(torch.cuda.current_stream(device).record_event())

        def meet(self) -> None:
            torch.cuda.synchronize(device)

    def target(batch: TokenBatch) -> TargetFeatures:
        number = batch.plan.number
        return TargetFeatures(batch, torch.full((sizes[number],), number, dtype=torch.uint8, device=device))

    made = Drafter(sizes, arena)
    plans = [BatchPlan(n, 0, n // 30, 0, n, np.array([n])) for n in range(60)]
    targets, landings = [StreamedTarget(target, device)] * 2, [Landing(device, device, arena) for _ in range(2)]
    bytes_of = lambda batch: rounded(sizes[batch.plan.number])  # noqa: E731
    stages = Stages(made.prefetch, targets, made, lambda _: 1, bytes_of, landings, arena.n_bytes)
    config = Overlapped(Threads(None, None), 4, 5, 10**9, 60.0)
    run_overlapped([tuple(plans[:30]), tuple(plans[30:])], stages, config, lambda *_: True, pytest.fail)
    assert all(len(x) == sizes[n] and bool((x == n).all()) for n, x in read.items()) and len(read) == 60
