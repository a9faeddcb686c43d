"""The first loop: plan -> tokens on the host, ahead of the target by a bounded number of batches."""

from collections.abc import Iterable

from dflash_exp.messages import BatchPlan
from dflash_exp.pipeline.channel import Channel, ChannelClosed
from dflash_exp.pipeline.stages import Prefetched, Stages, named
from dflash_exp.pipeline.watch import Doing, Watch


class BatchPrefetcher:
    """Collates the plan's batches in order; an item's number is its place in this run of the line. A step of which this
    rank trains nothing is an item, too: its end has to reach the drafter."""

    def __init__(
        self, steps: Iterable[tuple[BatchPlan, ...]], stages: Stages, out: Channel[Prefetched], watch: Watch
    ) -> None:
        self._steps = steps
        self._stages = stages
        self._out = out
        self.watch = watch

    def run(self) -> None:
        """Until the plan ends or nobody wants more."""
        number = 0
        self.watch.turn(Doing.busy)
        try:
            for step in self._steps:
                for place, plan in enumerate(step or (None,)):
                    self._send(number, plan, ends_step=place >= len(step) - 1)
                    number += 1
            self._out.finish(number)
        except ChannelClosed:
            pass

    def _send(self, number: int, plan: BatchPlan | None, ends_step: bool) -> None:
        batch, n_bytes = None, 0
        if plan is not None:
            with named("prefetch", plan):
                batch = self._stages.prefetch(plan)
            n_bytes = self._stages.batch_bytes(batch)
        self.watch.turn(Doing.waiting)
        self._out.reserve(number, n_bytes)
        self.watch.turn(Doing.busy)
        self._out.put(number, Prefetched(batch, ends_step, self.watch.lap()))
