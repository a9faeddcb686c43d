"""The middle loop, of which there may be several: tokens -> the frozen target's features, one batch at a time."""

from collections.abc import Callable
from dataclasses import dataclass

from dflash_exp.messages import TargetFeatures, TokenBatch
from dflash_exp.pipeline.channel import Channel, ChannelClosed, EndOfChannel
from dflash_exp.pipeline.stages import Forwarded, Land, Prefetched, named, use_threads
from dflash_exp.pipeline.watch import Doing, Watch


@dataclass(frozen=True)
class Forward:
    """What one of the loops does to a batch."""

    target: Callable[[TokenBatch], TargetFeatures]
    features_bytes: Callable[[TokenBatch], int]
    """Memory that the features will take."""
    land: Land | None
    threads: int


class TargetForwardLoop:
    """Takes the next batch, waits for credit in the features' channel, then forwards: memory is bounded before it is
    used, and credit goes out in plan order whichever loop is faster."""

    def __init__(self, batches: Channel[Prefetched], out: Channel[Forwarded], forward: Forward, watch: Watch) -> None:
        self._batches = batches
        self._out = out
        self._forward = forward
        self.watch = watch

    def run(self) -> None:
        """Until the batches end or nobody wants features."""
        use_threads(self._forward.threads)
        try:
            while True:
                self._forward_next()
        except EndOfChannel:
            n_items = self._batches.n_items
            assert n_items is not None, "a channel that ended knows its number of items"
            self._out.finish(n_items)
        except ChannelClosed:
            self._batches.close()

    def _forward_next(self) -> None:
        number, item = self._batches.take()
        self._batches.release(number)
        batch, features = item.batch, None
        begin = self._out.reserve(number, 0 if batch is None else self._forward.features_bytes(batch))
        self.watch.turn(Doing.busy)
        if batch is not None:
            with named("target", batch.plan, tuple(batch.tokens_BT.shape)):
                features = self._forward.target(batch)
                if self._forward.land is not None:
                    features = self._forward.land(features, begin)
        self.watch.turn(Doing.waiting)
        self._out.put(number, Forwarded(features, item.ends_step, item.prefetch, self.watch.lap()))
