"""Composition root: build each part, hand it its neighbours, run the line.

In: a checked `Config`. Out: an exit code and a run directory. Reading order: `run` is the whole of a training run; what it
needs is built by `plan_run` (ids only), `build` (models and stages) and `train` (the loop).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from dflash_exp.architecture import TargetShape
from dflash_exp.checkpoint import find_drafter, load_weights, read_shape, save_drafter
from dflash_exp.config import Config, EvaluateOptions, plain, run_directory
from dflash_exp.data.collate import Collator
from dflash_exp.data.store import Conversations, EmbeddedData, Responses, TooLong, read_split
from dflash_exp.decode import DecodeConfig
from dflash_exp.distributed import choose_device
from dflash_exp.drafter.anchors import candidates, choose_anchors, expected_weight
from dflash_exp.drafter.model import Drafter, initialise, resolve_shape
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, StepRecord
from dflash_exp.models import LoadedTarget, load
from dflash_exp.optim import build_optimizer, lr_scale
from dflash_exp.pipeline.drafter_train import DrafterTrainer, StepSetting, read_sums
from dflash_exp.pipeline.line import Stages, StepTiming, run_lockstep
from dflash_exp.plan.diagnosis import diagnose, diagnose_order
from dflash_exp.plan.epoch import Planner, PlanSettings, draw_order
from dflash_exp.plan.interleave import option_name
from dflash_exp.plan.run_length import EpochSteps, RunLength, resolve_length
from dflash_exp.plan.sequences import Sequences
from dflash_exp.probe import Probe, probe_batches
from dflash_exp.run_directory import create, finished, free_directory, write_json
from dflash_exp.scoring import decode_held_out, file_prompts, score, store_prompts
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_evaluation, print_plan, print_summary
from dflash_exp.target import TargetConfig, TargetDtype
from dflash_exp.telemetry.metrics import Metrics, probe_metrics, step_metrics
from dflash_exp.telemetry.progress import ProgressLine
from dflash_exp.telemetry.sinks import JsonlSink
from dflash_exp.trained import TrainedHashes

DONE, FAILED = 0, 1


@dataclass(frozen=True)
class Planned:
    """Everything about a run that follows from ids and lengths."""

    conversations: Conversations
    planner: Planner
    epochs: list[EpochSteps]
    settings: list[StepSetting]
    """One for each optimizer step of the run."""

    def steps(self) -> Iterator[tuple[BatchPlan, ...]]:
        """The batches of every optimizer step, in order."""
        for part in self.epochs:
            epoch = self.planner.epoch(part.epoch)
            yield from (epoch.step(step) for step in range(part.n_steps))


@dataclass(frozen=True)
class Built:
    """Models and stages, ready to run."""

    target: LoadedTarget
    drafter: Drafter
    stages: Stages
    probe: Probe
    trained: TrainedHashes


def run(config: Config, overrides: list[str]) -> int:
    """Train, save, decode, sum up. Exit code 0; failures raise after they are written to result.json."""
    console = Console()
    run_dir = run_directory(config)
    if finished(run_dir) and not config.force:
        console.print(f"{run_dir} is finished: nothing to do (force=true trains anew, beside it)", highlight=False)
        return DONE
    if run_dir.exists():
        run_dir = free_directory(run_dir)
        console.print(f"{run_directory(config)} exists already: this run goes to {run_dir}", highlight=False)
    started_s = time.monotonic()
    try:
        planned = plan_run(config)
        built = build(config, planned)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    create(run_dir, plain(config), overrides, plan_document(config, planned))
    console.print(opening_line(config, planned, built, run_dir), highlight=False)
    result: dict[str, object] = {"status": "failed", "steps": 0, "restarts": 0}
    try:
        result |= train(config, planned, built, run_dir, console)
        evaluation = None
        if config.evaluate:
            evaluation = decode_held_out(config, built.target, built.drafter, result["checkpoint"], console)
            write_json(run_dir / "evaluation.json", evaluation)
        result["status"] = "finished"
    except BaseException as error:
        result |= {"status": "stopped" if isinstance(error, KeyboardInterrupt) else "failed", "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        write_json(run_dir / "result.json", result)
    print_summary(console, run_dir, result, evaluation, time.monotonic() - started_s)
    return DONE


def plan_run(config: Config) -> Planned:
    """Lengths -> buckets -> batches -> order -> steps, for the whole run. Raises ValueError for what cannot be planned."""
    limit = min(config.data.max_tokens or config.batches.budget_tokens, config.batches.budget_tokens)
    conversations = read_split(config.data.folder, "train", limit, config.data.too_long)
    anchors, weights = _expectations(config, conversations)
    sequences = Sequences(conversations.lengths[conversations.rows], conversations.rows, weights, anchors)
    settings = PlanSettings(config.buckets, config.batches, config.interleave, config.batches_per_step, config.seeds)
    planner = Planner(sequences, settings)
    epochs = resolve_length(RunLength(config.epochs, config.steps, config.tokens), planner.epoch)
    supervised = np.array([conversations.supervised(row).sum() for row in conversations.rows])
    return Planned(conversations, planner, epochs, step_settings(planner, epochs, supervised))


def step_settings(planner: Planner, epochs: list[EpochSteps], supervised: np.ndarray) -> list[StepSetting]:
    """Share of the run's supervised tokens at the middle of each step, and the epoch's constant."""
    per_epoch = [planner.epoch(part.epoch) for part in epochs]
    sums = np.concatenate([plan.step_sums(supervised)[: part.n_steps] for plan, part in zip(per_epoch, epochs, strict=True)])
    constants = [plan.weight_per_step or 0.0 for plan, part in zip(per_epoch, epochs, strict=True) for _ in range(part.n_steps)]
    shares = (np.cumsum(sums) - sums / 2) / max(1, sums.sum())
    n_batches = planner.settings.batches_per_step
    return [StepSetting(float(share), weight, n_batches) for share, weight in zip(shares, constants, strict=True)]


def plan_document(config: Config, planned: Planned) -> dict[str, object]:
    """plan.json of the first epoch."""
    first = planned.planner.epoch(0)
    optim = config.optim
    scales = [lr_scale(s.share, optim.schedule, optim.warmup_share, optim.decay_share) for s in planned.settings]
    whole = len(scales) >= first.n_steps
    return diagnose(first, np.array(scales[: first.n_steps]) * optim.lr if whole else None)


def build(config: Config, planned: Planned) -> Built:
    """Load the target, make the drafter, join the stages. Raises ValueError for what does not fit together."""
    torch.use_deterministic_algorithms(config.deterministic)
    device = choose_device(config.topology)
    target = load(config.target, device, lambda shape, mask_id: resolve_shape(config.drafter, shape, mask_id))
    drafter = Drafter(target.drafter_shape, target.model.embedding_weight_VH.float(), target.model.head_weight_VH.float())
    drafter.to(device)
    initialise(drafter, config.seeds.init, target.model.final_norm_weight_H)
    optimizer = build_optimizer(config.optim, drafter.named_parameters())
    step = DrafterStep(drafter, config.loss, optimizer, config.drafter.slots_per_pass, config.optim.max_grad_norm)
    trained = TrainedHashes()
    collate = Collator(planned.conversations, anchor_rule(config))

    def prefetch(plan: BatchPlan):  # noqa: ANN202
        batch = collate(plan)
        trained.add(batch)
        return batch

    stages = Stages(prefetch, target.model, DrafterTrainer(step, optimizer, iter(planned.settings)))
    return Built(target, drafter, stages, build_probe(config, planned, target, step), trained)


def build_probe(config: Config, planned: Planned, target: LoadedTarget, step: DrafterStep) -> Probe:
    """Held-out batches, packed once; longer sequences than the training limit are cut to it."""
    limit = int(planned.planner.edges[-1])
    conversations = read_split(config.data.folder, "probe", min(limit, config.batches.budget_tokens), TooLong.truncate)
    plans = probe_batches(conversations, config.probe.sequences, planned.planner.edges, config.batches.budget_tokens, config.seeds.data)
    collate = Collator(conversations, anchor_rule(config))
    return Probe([collate(plan) for plan in plans], target.model, lambda features: read_sums(step.measure(features)))


def anchor_rule(config: Config):  # noqa: ANN201
    """(epoch, row, mask) -> anchors: a function of the sequence alone."""
    seed, n_anchors = config.seeds.anchors, config.drafter.anchors
    return lambda epoch, row, supervised: choose_anchors(seed, epoch, row, candidates(supervised), n_anchors)


def train(config: Config, planned: Planned, built: Built, run_dir: Path, console: Console) -> dict[str, object]:
    """The loop: one record a step, a probe now and then, the drafter saved at the end. Returns what result.json holds."""
    started_s = time.monotonic()
    n_steps, step, tokens = len(planned.settings), 0, 0
    sink = JsonlSink(run_dir / "metrics.jsonl")
    record: Metrics = {}
    probed = first_probe = probe_metrics(built.probe())
    line = run_lockstep(planned.steps(), built.stages, config.pipeline.threads)
    with ProgressLine(console, n_steps, time.monotonic) as progress:
        for result, timing in line:
            step, tokens = step + 1, tokens + result.tokens
            record = step_metrics(result)
            if config.probe.every_steps and (step % config.probe.every_steps == 0 or step == n_steps):
                probed = probe_metrics(built.probe())
                record |= probed
            elapsed_s = time.monotonic() - started_s
            eta_s = elapsed_s / step * (n_steps - step)
            record |= timing_metrics(timing, result.tokens) | {"progress/epoch_share": step / n_steps, "progress/eta_s": round(eta_s, 1)}
            sink.write(StepRecord(step, elapsed_s, record))
            progress.update(step, result.sums.loss / result.sums.weight if result.sums.weight else None, _number(probed, "probe/loss"), tokens / elapsed_s, eta_s)
    sink.close()
    folder = save_drafter(run_dir, step, built.drafter, built.target.max_position_embeddings)
    return {
        "steps": step, "epochs": len(planned.epochs), "tokens": tokens, "train_s": round(time.monotonic() - started_s, 1),
        "final": record, "first_probe": first_probe, "final_probe": probed, "checkpoint": folder.name,
        "init_seed": config.seeds.init, "probe_sha256": built.probe.sha256(), **built.trained.hashes(),
    }  # fmt: skip


def show_plan(config: Config) -> int:
    """Print an epoch and write plan.json and order.npy to `plan.out`, or beside it where that exists."""
    console = Console()
    try:
        order, document = _counted_plan(config) if config.plan.counts is not None else _data_plan(config)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print_plan(console, document)
    out = free_directory(Path(config.plan.out))
    out.mkdir(parents=True)
    write_json(out / "plan.json", document)
    np.save(out / "order.npy", order)
    console.print(f"plan.json and order.npy are in {out}", highlight=False)
    return DONE


def evaluate(path: Path, config: Config | None, options: EvaluateOptions) -> int:
    """Decode for real with a run's drafter (`config`: the run's own) or with a drafter in a folder of its own."""
    console = Console()
    try:
        folder = find_drafter(path, options.checkpoint)
        target_config = _target_of(path, config, options)
        shape = read_shape(folder)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        target = load(target_config, device, lambda dims, _: check_fits(shape, dims, folder))
        drafter = Drafter(shape, target.model.embedding_weight_VH.float(), target.model.head_weight_VH.float())
        load_weights(drafter, folder)
        drafter.to(device)
        decoding = DecodeConfig(
            options.max_new_tokens or (config.prompts.max_new_tokens if config else 128), options.temperature or 0.0,
            config.seed if config else 0, target.eos_ids,
        )  # fmt: skip
        limit = options.limit or (config.prompts.limit if config else None)
        if options.prompts is not None:
            prompts = file_prompts(Path(options.prompts), target.tokenizer, limit)
        else:
            data = config.data if config else EmbeddedData(Responses.model, None, TooLong.error)
            prompts = store_prompts(data, limit)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    evaluation = score(target, drafter, prompts, decoding, folder.name, console)
    print_evaluation(console, evaluation)
    out = free_directory(path / "evaluation.json")
    write_json(out, evaluation)
    console.print(f"written to {out}", highlight=False)
    return DONE


def check_fits(shape: DrafterShape, target: TargetShape, folder: Path) -> DrafterShape:
    """ValueError unless the drafter was made for a target of these sizes."""
    stated = (shape.hidden_size, shape.vocab_size, shape.n_target_layers)
    found = (target.hidden_size, target.vocab_size, target.n_layers)
    if stated != found:
        raise ValueError(f"the drafter in {folder} must fit its target in (hidden size, vocabulary, layers): it wants {stated}, the target has {found}; give --target")
    return shape


def opening_line(config: Config, planned: Planned, built: Built, run_dir: Path) -> str:
    """What is about to happen, in one line, with what was cut or left out."""
    kept, cut = len(planned.conversations.rows), planned.conversations
    odd = "".join(f", {n} {what}" for n, what in ((cut.n_truncated, "truncated"), (cut.n_skipped, "skipped")) if n)
    return (
        f"{run_dir}: {len(planned.settings)} steps over {kept} conversations{odd}, {option_name(config.interleave)}, "
        f"{sum(p.numel() for p in built.drafter.parameters()) / 1e6:.2f}M drafter parameters on {built.target.model.device.type}"
    )


def timing_metrics(timing: StepTiming, tokens: int) -> Metrics:
    """Where the step's time went."""
    return {
        "pipeline/prefetch_busy_s": round(timing.prefetch_s, 6),
        "pipeline/target_busy_s": round(timing.target_s, 6),
        "pipeline/drafter_busy_s": round(timing.drafter_s, 6),
        "throughput/tokens_per_s": round(tokens / timing.step_s, 1),
    }


def _data_plan(config: Config) -> tuple[np.ndarray, dict[str, object]]:
    planned = plan_run(config)
    return planned.planner.epoch(0).order, plan_document(config, planned)


def _counted_plan(config: Config) -> tuple[np.ndarray, dict[str, object]]:
    counts = np.array(config.plan.counts)
    order = draw_order(config.interleave, counts, config.seeds, 0)
    return order, diagnose_order(order, counts, config.interleave, config.batches_per_step, config.seeds, 0)


def _expectations(config: Config, conversations: Conversations) -> tuple[np.ndarray, np.ndarray]:
    """Anchors and expected loss weight of every sequence."""
    drafter, gamma = config.drafter, config.loss.gamma
    found = [expected_weight(conversations.supervised(row), drafter.anchors, drafter.block_size, gamma) for row in conversations.rows]
    return np.array([n for n, _ in found]), np.array([weight for _, weight in found])


def _target_of(path: Path, config: Config | None, options: EvaluateOptions) -> TargetConfig:
    if options.target is not None:
        dtype = config.target.dtype if config else TargetDtype.FLOAT32
        return TargetConfig(options.target, dtype)
    if config is None:
        raise ValueError(f"--target must name the drafter's target: {path} is no run and does not say it; `--target embedded` is the one that ships")
    return config.target


def _number(metrics: Metrics, name: str) -> float | None:
    value = metrics.get(name)
    return value if isinstance(value, float) else None
