"""The middle loop, of which there may be several: tokens -> the frozen target's features, one batch at a time."""

from dflash_exp.pipeline.channel import Channel, ChannelClosed, EndOfChannel
from dflash_exp.pipeline.stages import Forwarded, Prefetched, Stages, named, use_threads
from dflash_exp.pipeline.watch import Doing, Watch


class TargetForwardLoop:
    """Takes the next batch, waits for credit in the features' channel, then forwards: memory is bounded before it is
    used, and credit goes out in plan order whichever loop is faster."""

    def __init__(
        self, batches: Channel[Prefetched], out: Channel[Forwarded], stages: Stages, threads: int, watch: Watch
    ) -> None:
        self._batches = batches
        self._out = out
        self._stages = stages
        self._threads = threads
        self.watch = watch

    def run(self) -> None:
        """Until the batches end or nobody wants features."""
        use_threads(self._threads)
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
        self._out.reserve(number, 0 if batch is None else self._stages.features_bytes(batch))
        self.watch.turn(Doing.busy)
        if batch is not None:
            with named("target", batch.plan, tuple(batch.tokens_BT.shape)):
                features = self._stages.target(batch)
        self.watch.turn(Doing.waiting)
        self._out.put(number, Forwarded(features, item.ends_step, item.prefetch, self.watch.lap()))
