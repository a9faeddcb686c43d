"""What is done to a batch on the devices of a rank: tokens fetched, the target run, its features landed.

In: the configuration, a loaded target, this rank's devices. Out: the parts of `Stages` before the drafter's.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from dflash_exp.config import Config
from dflash_exp.data.collate import Collator
from dflash_exp.distributed import RankDevices
from dflash_exp.feature_cache import CachedTargets, DiskStore, MemoryStore, default_folder
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch
from dflash_exp.models import forward_inputs, located
from dflash_exp.pipeline.arena import ALIGNED, FeatureArena, rounded
from dflash_exp.pipeline.line import Lockstep, Overlapped
from dflash_exp.pipeline.stages import Land
from dflash_exp.pipeline.streams import Landing, StreamedTarget, pinned
from dflash_exp.planning import Planned, anchor_rule
from dflash_exp.target import FrozenTarget, TargetCache, TargetConfig
from dflash_exp.target_loading import load_model


def prefetch_stage(config: Config, planned: Planned, devices: RankDevices) -> Callable[[BatchPlan], TokenBatch]:
    """A plan's batch as tensors, in memory that a device can copy from by itself where there is one."""
    collate = Collator(planned.conversations, anchor_rule(config))
    return collate if devices.drafter.type == "cpu" else lambda plan: pinned(collate(plan))


def cached_targets(wanted: TargetConfig, target: FrozenTarget, say: Callable[[str], None]) -> CachedTargets | None:
    """The cache that the configuration asks for. Raises ValueError for a folder that cannot be."""
    if wanted.cache is TargetCache.OFF:
        return None
    if wanted.cache is TargetCache.MEMORY:
        store = MemoryStore(wanted.cache_bytes, say)
    else:
        folder = default_folder() if wanted.cache_dir is None else Path(wanted.cache_dir)
        store = DiskStore(folder, wanted.cache_bytes, say)
    return CachedTargets(store, forward_inputs(target))


def target_stages(
    wanted: TargetConfig, target: FrozenTarget, devices: RankDevices, cache: CachedTargets | None
) -> list[Callable[[TokenBatch], TargetFeatures]]:
    """The target of each loop: one copy on each loop's devices, behind the cache, and on CUDA streams of its own for
    each loop."""
    copies = {devices.targets[0]: target}
    for own in devices.targets:
        if own not in copies:
            copies[own] = FrozenTarget(load_model(located(wanted), own), target.taps, wanted.forward)
    asked = {own: copy if cache is None else cache.wrap(copy) for own, copy in copies.items()}
    if devices.drafter.type == "cpu":
        return [asked[own] for own in devices.targets]
    return [StreamedTarget(asked[own], own[0]) for own in devices.targets]


def landings_for(devices: RankDevices, arena: FeatureArena | None) -> list[Land] | None:
    """For each target loop; None on a CPU, where features are where they are read."""
    if devices.drafter.type == "cpu":
        return None
    return [Landing(own[0], devices.drafter, arena) for own in devices.targets]


def feature_arena(pipeline: Lockstep | Overlapped, largest_bytes: int, device: torch.device) -> FeatureArena | None:
    """Memory for all features that may be under way, none of a batch taking more than `largest_bytes`; on CUDA, where
    the line is overlapped."""
    if device.type == "cpu" or isinstance(pipeline, Lockstep):
        return None
    wanted = pipeline.features_ahead * rounded(largest_bytes)
    return FeatureArena(min(wanted, pipeline.features_bytes // ALIGNED * ALIGNED), device)


def batch_bytes(batch: TokenBatch) -> int:
    """Memory of a batch's tokens and masks."""
    return batch.tokens_BT.nbytes + batch.supervised_BT.nbytes
