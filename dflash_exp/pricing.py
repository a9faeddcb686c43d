"""What an epoch costs before anybody pays for it: work, evenness of ranks, memory, hours.

In: the configuration, its first epoch and, where there is one, a measured run. Out: the fields of plan.json. Costs are
FLOP counted from sizes (config.json is read, no weights), or seconds fitted to a run's records.
"""

from dataclasses import dataclass

import numpy as np

from dflash_exp.architecture import TargetShape, check_layer_split
from dflash_exp.config import Config
from dflash_exp.distributed import device_type
from dflash_exp.drafter.model import AttentionKind, tapped_layers
from dflash_exp.measured import Measured, steps_work
from dflash_exp.models import known_shape
from dflash_exp.optim import Muon
from dflash_exp.peaks import mfu, peak_flop_per_s
from dflash_exp.pipeline.line import Overlapped
from dflash_exp.plan.align import sync_efficiency
from dflash_exp.plan.cost import StageCosts, Work, counted_costs, plan_work, slower_stage, stage_costs
from dflash_exp.plan.diagnosis import BatchCosts, cost_per_batch
from dflash_exp.plan.epoch import EpochPlan, Planner
from dflash_exp.plan.memory import Models, UnderWay, peak_memory
from dflash_exp.plan.run_length import EpochSteps

COUNTED = "counted from the sizes of target and drafter"


@dataclass(frozen=True)
class Price:
    """Fields of plan.json; None is what cannot be known."""

    cost: dict[str, object] | None = None
    sync_efficiency: float | None = None
    memory_bytes: dict[str, int] | None = None
    hours: dict[str, object] | None = None


def price(config: Config, first: EpochPlan, run_tokens: int, measured: Measured | None) -> Price:
    """What an epoch like `first` costs, and a run of `run_tokens`. Raises ValueError for a target that is not one.

    Where target and drafter share a device, all its target workers do, so no cost is divided by anything: the
    bottleneck is the stage that takes most of the device's time, and the line at best as long as both together. With
    `topology.target_devices` the bottleneck is the slower of two, the target's cost shared out over its devices, as
    far as there are workers to keep them busy.
    """
    shape, work = known_shape(config.target), plan_work(first, config.drafter.block_size)
    if shape is not None:
        check_layer_split(config.target.layer_split, shape.n_layers)
    hours = _hours(config, first, run_tokens, work, measured)
    costs, unit, basis = _costs(config, shape, measured)
    if costs is None:
        return Price(hours=hours)
    target, drafter = (cost[first.drawn] for cost in stage_costs(work, costs))
    topology = config.topology
    at_work = min(topology.target_devices, topology.target_workers)
    slower = slower_stage(target / max(1, at_work), drafter)
    return Price(
        cost=cost_per_batch(first.order, first.counts, BatchCosts(target, drafter, unit, basis, at_work)),
        sync_efficiency=sync_efficiency(config.align, slower, first.bounds, topology.n_ranks),
        memory_bytes=None if shape is None else _memory(config, shape, work, first.batches.sizes),
        hours=hours,
    )


def trained_mfu(
    config: Config, plan: tuple[Planner, list[EpochSteps]], steps: range, device_s: float, device_name: str
) -> float | None:
    """The share of its devices' peak that training the run's `steps` (from 0) was, over `device_s` seconds of all
    devices together; None where the peak or the target's sizes are not known."""
    shape = known_shape(config.target)
    if shape is None or peak_flop_per_s(device_name) is None or not steps:
        return None
    target, drafter = stage_costs(steps_work(*plan, config.drafter.block_size, steps.stop), counted(config, shape))
    return mfu(float((target + drafter)[steps.start : steps.stop].sum()), device_s, device_name)


def _costs(config: Config, shape: TargetShape | None, measured: Measured | None) -> tuple[StageCosts | None, str, str]:
    """The coefficients, their unit and what they rest on."""
    if measured is not None:
        return measured.costs, "s", measured.basis
    if shape is None:
        return None, "FLOP", COUNTED
    return counted(config, shape), "FLOP", COUNTED


def counted(config: Config, shape: TargetShape) -> StageCosts:
    """The coefficients in FLOP, for a target of these sizes."""
    drafter, taps = config.drafter, tapped_layers(config.drafter, shape.n_layers)
    return counted_costs(shape, taps[-1] + 1, drafter.n_layers, len(taps), drafter.block_size)


def _memory(config: Config, shape: TargetShape, work: Work, n_sequences: np.ndarray) -> dict[str, int]:
    drafter, pipeline, target_dtype = config.drafter, config.pipeline, config.target.dtype.torch
    compute_dtype = drafter.compute_dtype.beside(target_dtype)
    kind = drafter.attention.on(device_type(config.topology), shape.head_dim)
    models = Models(
        sizes=shape,
        n_target_layers=shape.n_layers,
        tied_embeddings=shape.tied_embeddings,
        target_width=target_dtype.itemsize,
        compute_width=compute_dtype.itemsize,
        shares_tables=compute_dtype == target_dtype,
        n_drafter_layers=drafter.n_layers,
        n_taps=len(tapped_layers(drafter, shape.n_layers)),
        block_size=drafter.block_size,
        slots_per_pass=drafter.slots_per_pass,
        matrix_state_width=4 if isinstance(config.optim, Muon) else 8,
        keeps_probabilities=kind is AttentionKind.grouped,
    )
    topology, layer_split = config.topology, config.target.layer_split
    line = UnderWay(1, None, 1, topology.target_devices, layer_split)
    if isinstance(pipeline, Overlapped):
        ahead, most = pipeline.features_ahead, pipeline.features_bytes
        line = UnderWay(ahead, most, topology.target_workers, topology.target_devices, layer_split)
    return peak_memory(models, work, n_sequences, line).as_json(models, line)


def _hours(
    config: Config, first: EpochPlan, run_tokens: int, work: Work, measured: Measured | None
) -> dict[str, object] | None:
    """Of the first epoch and of the whole run, whose other epochs are taken to be as fast; None without a speed."""
    epoch_tokens, tokens_per_s = first.sequences.n_tokens, config.plan.tokens_per_s
    if measured is not None:
        target_s, drafter_s = stage_costs(work, measured.costs)
        tokens_per_s = epoch_tokens / (measured.pace * float(target_s.sum() + drafter_s.sum()))
    if tokens_per_s is None:
        return None
    return {
        "run": run_tokens / tokens_per_s / 3600,
        "epoch": epoch_tokens / tokens_per_s / 3600,
        "tokens_per_s": tokens_per_s,
        "basis": f"plan.tokens_per_s={tokens_per_s:g}" if measured is None else measured.basis,
    }
