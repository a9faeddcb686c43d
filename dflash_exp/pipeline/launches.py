"""Whether the host keeps its device busy: how long it launched an item's work, beside how long the device took for it.

In: a stage's work on one item. Out: two events around it, read when the step is over and they are long past, so that
nothing waits for them. A device that ends within a tenth of the launching's own time after it began had nothing queued:
that launching is *host-bound*. It is not where the device began only after all was launched, whatever it was busy with,
the other stage on the same device say. Where there is no CUDA the host does the work, and there is nothing to say.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from dflash_exp.messages import Launch, StageTime

Result = TypeVar("Result")
BatchLaunches = tuple[Launch | None, Launch | None]
"""The target's and the drafter's, of one batch."""

CLOSE = 1.1
"""The device's time over the host's up to which the device waited for the host; its last kernels end a little later."""


def launched(device: torch.device, work: Callable[[], Result]) -> tuple[Result, Launch | None]:
    """Do the work on the device's current stream; None on a CPU. Work that itself waits for its device counts as
    launching."""
    if device.type != "cuda":
        return work(), None
    began, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    started_s = time.perf_counter()
    began.record(stream)
    result = work()
    done.record(stream)
    return result, Launch(time.perf_counter() - started_s, began, done, ahead=not began.query())


def with_host_bound(
    target: StageTime, drafter: StageTime, launches: Sequence[BatchLaunches]
) -> tuple[StageTime, StageTime]:
    """The times of both stages with what of their launching was host-bound; unchanged where nothing was launched. The
    events are past."""
    return _bound(target, [own for own, _ in launches]), _bound(drafter, [own for _, own in launches])


def _bound(spent: StageTime, launches: Sequence[Launch | None]) -> StageTime:
    own_s = [host_bound_s(launch) for launch in launches if launch is not None]
    return replace(spent, host_bound_s=sum(own_s)) if own_s else spent


def host_bound_s(launch: Launch) -> float:
    """All of the launching's seconds, or none."""
    device_s = launch.began.elapsed_time(launch.done) / 1000
    return launch.host_s if not launch.ahead and device_s <= CLOSE * launch.host_s else 0.0
