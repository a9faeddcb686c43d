"""On CUDA each target loop has streams of its own, so that target and drafter run side by side on a device.

In: a batch. Out: its features on the drafter's device, with the event after which they may be read. A plain copy
between devices makes the current streams of both wait for one another, so it is made while side streams are current.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from dflash_exp.messages import TargetFeatures, TokenBatch
from dflash_exp.pipeline.launches import launched


class StreamedTarget:
    """The target of one loop, whose host runs ahead of its device."""

    def __init__(
        self, target: Callable[[TokenBatch], TargetFeatures], device: torch.device, drafter_device: torch.device
    ) -> None:
        self._target, self._device, self._drafter_device = target, device, drafter_device
        self._stream, self._arriving = torch.cuda.Stream(device), torch.cuda.Stream(drafter_device)
        torch.cuda.synchronize(device)  # the weights have arrived before a stream of its own reads them

    def __call__(self, batch: TokenBatch) -> TargetFeatures:
        """Launch the forward and the copy; waits for neither."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            features, launch = launched(self._device, lambda: self._target(batch))
            features = replace(features, launch=launch)
            if self._device == self._drafter_device:
                return replace(features, ready=self._stream.record_event())
            with torch.cuda.stream(self._arriving):
                arrived = features.features_PF.to(self._drafter_device, non_blocking=True)
            return replace(features, features_PF=arrived, ready=self._arriving.record_event())


def wait_for(features: TargetFeatures) -> None:
    """The caller's stream reads the features after they are there, and they stay until it has."""
    if features.ready is not None:
        stream = torch.cuda.current_stream(features.features_PF.device)
        features.ready.wait(stream)
        features.features_PF.record_stream(stream)


def pinned(batch: TokenBatch) -> TokenBatch:
    """The tokens in page-locked memory, from which a copy to a device need not be waited for."""
    return replace(batch, tokens_BT=batch.tokens_BT.pin_memory(), lengths_B=batch.lengths_B.pin_memory())
