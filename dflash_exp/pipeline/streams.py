"""On CUDA each target loop has streams of its own, so that target and drafter run side by side on a device.

In: a batch. Out: its features on the drafter's device, with the event after which they may be read. A plain copy
between devices makes the current streams of both wait for one another, so it is made while side streams are current.
Features land in the range of the arena that their credit names. What has none (in lockstep, or larger than the arena)
lies where the allocator puts it, which then holds it until the drafter's stream has passed.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from dflash_exp.messages import TargetFeatures, TokenBatch
from dflash_exp.pipeline.arena import FeatureArena
from dflash_exp.pipeline.launches import launched


class StreamedTarget:
    """The target of one loop, whose host runs ahead of its device."""

    def __init__(self, target: Callable[[TokenBatch], TargetFeatures], device: torch.device) -> None:
        self._target, self._device = target, device
        self._stream = torch.cuda.Stream(device)
        torch.cuda.synchronize(device)  # the weights have arrived before a stream of its own reads them

    def __call__(self, batch: TokenBatch) -> TargetFeatures:
        """Launch the forward; waits for nothing."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            features, launch = launched(self._device, lambda: self._target(batch))
            return replace(features, launch=launch, ready=self._stream.record_event())


class Landing:
    """Brings the features of one target loop to the drafter's device."""

    def __init__(self, source: torch.device, drafter_device: torch.device, arena: FeatureArena | None) -> None:
        self._device, self._arena = drafter_device, arena
        self._arriving = torch.cuda.Stream(drafter_device)
        self._leaving = self._arriving if source == drafter_device else torch.cuda.Stream(source)

    def __call__(self, features: TargetFeatures, begin: int | None) -> TargetFeatures:
        """Launch the copy into the arena, from its byte `begin` on, or to where the allocator says; waits for
        nothing."""
        source_PF, ready = features.features_PF, features.ready
        if begin is None and source_PF.device == self._device:
            return features
        assert ready is not None, "on CUDA features come with their event"
        with torch.cuda.stream(self._leaving), torch.cuda.stream(self._arriving):
            ready.wait(self._leaving)
            source_PF.record_stream(self._leaving)
            landed_PF = self._memory(source_PF, begin)
            landed_PF.copy_(source_PF, non_blocking=True)
            there = replace(features, features_PF=landed_PF, ready=self._arriving.record_event())
        if begin is None or self._arena is None:
            return there
        arena = self._arena
        return replace(there, read_until=lambda mark: arena.read_until(landed_PF, mark))

    def _memory(self, like_PF: torch.Tensor, begin: int | None) -> torch.Tensor:
        """Where they land; the arriving stream comes after whoever read there."""
        if begin is None or self._arena is None:
            return torch.empty_like(like_PF, device=self._device)
        for mark in self._arena.before_writing(begin, like_PF.nbytes):
            mark.wait(self._arriving)
        return self._arena.at(begin, like_PF)


def wait_for(features: TargetFeatures) -> None:
    """The caller's stream reads the features after they are there, and they stay until it has."""
    if features.ready is not None:
        stream = torch.cuda.current_stream(features.features_PF.device)
        features.ready.wait(stream)
        if features.read_until is None:
            features.features_PF.record_stream(stream)


def pinned(batch: TokenBatch) -> TokenBatch:
    """The tokens in page-locked memory, from which a copy to a device need not be waited for."""
    return replace(batch, tokens_BT=batch.tokens_BT.pin_memory(), lengths_B=batch.lengths_B.pin_memory())
