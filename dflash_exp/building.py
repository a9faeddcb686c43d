"""Models, stages and probe of a run, built from its configuration, and what of them a checkpoint keeps.

In: a checked `Config` and its plan. Out: `Built`, fresh, or as a checkpoint left it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dflash_exp.between_steps import Counters
from dflash_exp.block_passes import AttentionMade, block_passes, most_tokens
from dflash_exp.checkpoint import Snapshot, read_progress, read_state, take_snapshot
from dflash_exp.config import Config
from dflash_exp.data.collate import Collator
from dflash_exp.data.store import Conversations, TooLong, read_manifest, read_split
from dflash_exp.decode import DecodeConfig
from dflash_exp.distributed import RankDevices, rank_devices
from dflash_exp.drafter.model import Drafter, initialise, resolve_shape
from dflash_exp.drafter.session import drafts_at
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.evaluation import repeats_itself
from dflash_exp.feature_cache import CachedTargets
from dflash_exp.messages import ShareOut
from dflash_exp.models import LoadedTarget, load, parameters_sha256, weights_fingerprint
from dflash_exp.optim import Optimizer, build_optimizer
from dflash_exp.pipeline.arena import rounded
from dflash_exp.pipeline.drafter_train import DrafterTrainer, Reports, read_sums
from dflash_exp.pipeline.line import Steps
from dflash_exp.pipeline.meeting import Meeting, room
from dflash_exp.pipeline.stages import Stages
from dflash_exp.plan.buckets import assign_held_out
from dflash_exp.planning import Deal, Planned, anchor_rule
from dflash_exp.pricing import counted
from dflash_exp.probe import Probe, probe_batches
from dflash_exp.published import load_weights, start_from
from dflash_exp.ranks import Ranks, share_out
from dflash_exp.replay import Replay, ReplayPrompt, replay_metrics
from dflash_exp.staging import (
    batch_bytes,
    cached_targets,
    feature_arena,
    landings_for,
    prefetch_stage,
    target_stages,
)
from dflash_exp.telemetry.dynamics.watch import Dynamics
from dflash_exp.telemetry.metrics import Metrics, probe_metrics
from dflash_exp.trained import TrainedHashes


@dataclass(frozen=True)
class Built:
    """Models and stages, ready to run."""

    target: LoadedTarget
    drafter: Drafter
    optimizer: Optimizer
    init_sha256: str
    stages: Stages
    trainer: DrafterTrainer
    devices: RankDevices
    probe: Probe
    replay: Replay | None
    trained: TrainedHashes
    step: DrafterStep
    dynamics: Dynamics
    cache: CachedTargets | None
    attention: AttentionMade

    def measure(self) -> Metrics:
        """The probe's loss, and τ by replay, of the drafter as it is."""
        return probe_metrics(self.probe()) | ({} if self.replay is None else replay_metrics(self.replay()))

    def probe_loss(self) -> float | None:
        """The probe's loss alone; None where nothing counts in it, or it is not finite."""
        return probe_metrics(self.probe()).get("probe/loss")

    def probe_gradients(self) -> dict[int, list[float]]:
        """Sketches of the gradients of each bucket's part of the probe, at the parameters as they are."""
        by_bucket: dict[int, np.ndarray] = {}
        for bucket, sketch in self.probe.each(self.step.sketch):
            by_bucket[bucket] = by_bucket.get(bucket, np.zeros(len(sketch))) + np.array(sketch)
        return {bucket: sketch.tolist() for bucket, sketch in by_bucket.items()}


@dataclass(frozen=True)
class Outside:
    """What a run is told of the world around it."""

    ranks: Ranks
    say: Callable[[str], None]
    """Takes lines for the user."""
    asked_to_stop: Callable[[], bool]


def build(config: Config, planned: Planned, first_step: int, outside: Outside) -> Built:
    """Load the target, make the drafter, join the stages. Raises ValueError for what does not fit together.

    `first_step`: optimizer steps that were done before.
    """
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    if config.deterministic != torch.are_deterministic_algorithms_enabled():  # to set it imports the compiler, seconds
        torch.use_deterministic_algorithms(config.deterministic)
    ranks, n_batches = outside.ranks, config.batches_per_step
    devices = rank_devices(config.topology, config.target.layer_split, ranks.rank)
    target = load(
        config.target, devices.targets[0], lambda shape, mask_id: resolve_shape(config.drafter, shape, mask_id)
    )
    check_vocabulary(config, target.drafter_shape.vocab_size)
    drafter = target.new_drafter(config.drafter.compute_dtype, devices.drafter)
    initialise(drafter, config.seeds.init, target.model.final_norm_weight_H)
    if config.drafter.init_from is not None:
        start_from(drafter, Path(config.drafter.init_from))
    optimizer = build_optimizer(config.optim, drafter.named_parameters())
    behind = room(n_batches, ranks.n_ranks)
    held_out = held_out_for_probe(config)
    most = most_tokens(config.batches, planned.planner.sequences.lengths, held_out.lengths[held_out.rows])
    passes, attention = block_passes(config, most, drafter)
    step = DrafterStep(drafter, config.loss, optimizer, passes, config.optim.max_grad_norm, behind)
    arena = feature_arena(config.pipeline, most * target.model.token_bytes, devices.drafter)
    trained = TrainedHashes()
    reports = Reports(trained.add, outside.say, outside.asked_to_stop)
    meeting = Meeting(step.sums, ranks, n_batches)
    cache = cached_targets(config.target, target.model, outside.say)
    steps = zip(islice(planned.settings, first_step, None), planned.steps(first_step), strict=True)
    trainer = DrafterTrainer(step, optimizer, steps, meeting, config.guard.non_finite, reports)
    return Built(
        target=target,
        drafter=drafter,
        optimizer=optimizer,
        init_sha256=parameters_sha256(drafter),
        stages=Stages(
            prefetch_stage(config, planned, devices),
            target_stages(config.target, target.model, devices, cache),
            trainer,
            batch_bytes,
            lambda batch: rounded(target.model.features_bytes(batch)),
            landings_for(devices, arena),
            None if arena is None else arena.n_bytes,
        ),
        trainer=trainer,
        devices=devices,
        probe=build_probe(config, planned, held_out, target, step, partial(share_out, ranks)),
        replay=build_replay(config, planned, target, drafter, partial(share_out, ranks)),
        trained=trained,
        step=step,
        dynamics=Dynamics(len(planned.planner.edges), config.seeds.data),
        cache=cache,
        attention=attention,
    )


def hashes_of_inputs(config: Config, planned: Planned, built: Built) -> dict[str, str]:
    """What the run's results depend on beside its configuration and plan: the tokens, the target's weights, and those
    of the drafter that it starts from."""
    splits = read_manifest(config.data.folder)["splits"]
    started = {} if config.drafter.init_from is None else {"init_sha256": built.init_sha256}
    return {
        **started,
        "train_sha256": planned.conversations.sha256,
        **{f"{name}_sha256": splits[name]["sha256"] for name in ("probe", "prompts") if name in splits},
        "target_fingerprint": weights_fingerprint(built.target.model.model),
    }


def check_vocabulary(config: Config, vocab_size: int) -> None:
    """ValueError where the store may hold ids that the target does not know."""
    stated = read_manifest(config.data.folder)["vocab_size"]
    if stated > vocab_size:
        raise ValueError(
            f"data.path must be tokenised for the target, whose vocabulary is {vocab_size}, got a store for {stated}; "
            "prepare it with the target's tokenizer"
        )


def held_out_for_probe(config: Config) -> Conversations:
    """The probe split; a longer sequence than the budget is cut to it."""
    return read_split(config.data.folder, "probe", config.batches.budget_tokens, TooLong.truncate)


def build_probe(
    config: Config, planned: Planned, held_out: Conversations, target: LoadedTarget, step: DrafterStep,
    among_ranks: ShareOut,
) -> Probe:  # fmt: skip
    """Held-out batches, packed once by the training edges."""
    edges = planned.planner.edges
    plans = probe_batches(held_out, config.probe.sequences, edges, config.batches, config.seeds.data)
    collate = Collator(held_out, anchor_rule(config))
    measure = lambda features: read_sums(step.measure(features))  # noqa: E731
    return Probe([collate(plan) for plan in plans], target.model, measure, among_ranks)


def build_replay(
    config: Config, planned: Planned, target: LoadedTarget, drafter: Drafter, among_ranks: ShareOut
) -> Replay | None:
    """The first `probe.prompts` held-out prompts, None for none; a prompt's bucket is that of its whole
    conversation."""
    if config.probe.prompts == 0:
        return None
    held_out = read_split(config.data.folder, "prompts", None, TooLong.error)
    rows = held_out.rows[: config.probe.prompts]
    prompts = []
    for row, bucket in zip(rows, assign_held_out(held_out.lengths[rows], planned.planner.edges), strict=True):
        prompt, whole = held_out.prompt(row), held_out.tokens(row)
        tokens_P = torch.from_numpy(prompt.astype("int64"))
        prompts.append(ReplayPrompt(tokens_P, whole[len(prompt) :].tolist(), int(bucket)))
    slots = config.drafter.slots_per_pass

    def draft(features_TF: Tensor, tokens_L: Tensor, positions_A: Tensor) -> Tensor:
        return drafts_at(drafter, features_TF, tokens_L, positions_A, slots)

    return Replay(prompts, target.model, greedy_decoding(config, target), draft, repeats_itself, among_ranks)


def greedy_decoding(config: Config, target: LoadedTarget) -> DecodeConfig:
    """How held-out prompts are continued, by replay and in the end for real."""
    return DecodeConfig(config.prompts.max_new_tokens, 0.0, config.seed, target.eos_ids)


def snapshot(built: Built, counters: Counters, metrics_bytes: int) -> Snapshot:
    """Everything that the rest of the run depends on, copied between two optimizer steps."""
    state = {
        "optimizer": built.optimizer.state_dict(), "trained": built.trained.state(),
        "dynamics": built.dynamics.state(), "direction": built.step.direction.state(),
    }  # fmt: skip
    progress = {"counters": counters.as_json(), "metrics_bytes": metrics_bytes}
    return take_snapshot(counters.step, built.drafter, built.target.max_position_embeddings, state, progress)


def restore(built: Built, folder: Path) -> None:
    """Weights, optimizer and what was trained, as they were at that checkpoint."""
    load_weights(built.drafter, folder)
    state = read_state(folder)
    built.optimizer.load_state_dict(state["optimizer"])
    built.trained.load_state(state["trained"])
    if "dynamics" in state:  # not in the checkpoint of a run begun before there was one
        built.dynamics.load_state(state["dynamics"])
        built.step.direction.load_state(state["direction"])


def dealt_steps(config: Config, planned: Planned, built: Built, first_step: int, ranks: Ranks) -> Steps:
    """What this rank trains, from the run's step `first_step` on."""
    if ranks.n_ranks == 1:
        return planned.steps(first_step)
    costs = counted(config, built.target.model.shape)
    return planned.rank_steps(
        first_step, Deal(config.align, ranks.rank, ranks.n_ranks, costs, config.drafter.block_size)
    )


def counters_of(folder: Path) -> tuple[Counters, int]:
    """How far the run had come at a checkpoint, and how long metrics.jsonl was."""
    progress = read_progress(folder)
    return Counters(**progress["counters"]), progress["metrics_bytes"]
