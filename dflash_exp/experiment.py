"""Composition root: build each part, hand it its neighbours, run the line.

In: a checked `Config`. Out: an exit code and a run directory. `run` is the whole of a training run: the plan comes from
`planning.py`, models and stages from `build`, and `train` is the loop.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dflash_exp.checkpoint import save_drafter
from dflash_exp.config import Config, plain, run_directory
from dflash_exp.data.collate import Collator
from dflash_exp.data.store import TooLong, read_manifest, read_split
from dflash_exp.decode import DecodeConfig
from dflash_exp.distributed import choose_device
from dflash_exp.drafter.model import Drafter, initialise, resolve_shape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, StepRecord, StepResult, TokenBatch
from dflash_exp.models import LoadedTarget, load, parameters_sha256
from dflash_exp.optim import build_optimizer
from dflash_exp.pipeline.drafter_train import DrafterTrainer, read_sums
from dflash_exp.pipeline.line import Stages, run_lockstep
from dflash_exp.plan.interleave import option_name
from dflash_exp.planning import Planned, anchor_rule, plan_document, plan_run
from dflash_exp.probe import Probe, probe_batches
from dflash_exp.run_directory import create, finished, free_directory, write_json
from dflash_exp.scoring import score, store_prompts
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_summary
from dflash_exp.telemetry.metrics import Metrics, probe_metrics, step_metrics, timing_metrics
from dflash_exp.telemetry.progress import ProgressLine
from dflash_exp.telemetry.sinks import JsonlSink
from dflash_exp.trained import TrainedHashes

DONE = 0


@dataclass(frozen=True)
class Built:
    """Models and stages, ready to run."""

    target: LoadedTarget
    drafter: Drafter
    init_sha256: str
    stages: Stages
    probe: Probe
    trained: TrainedHashes


def run(config: Config, overrides: list[str]) -> int:
    """Train, save, decode, sum up. Returns 0; a failure raises, after result.json says so."""
    console = Console()
    started_s = time.monotonic()
    wanted = run_directory(config)
    if finished(wanted) and not config.force:
        console.print(f"{wanted} is finished: nothing to do (force=true trains anew, beside it)", highlight=False)
        return DONE
    try:
        planned = plan_run(config)
        built = build(config, planned)
        prompts = store_prompts(config.data, config.prompts.limit) if config.evaluate else []
    except ValueError as error:
        raise ConfigError(str(error)) from error
    run_dir = free_directory(wanted)
    create(run_dir, plain(config), overrides, plan_document(config, planned))
    if run_dir != wanted:
        console.print(f"{wanted} is taken: nothing there is touched", highlight=False)
    console.print(opening_line(config, planned, built, run_dir), highlight=False, soft_wrap=True)
    result: dict[str, Any] = {"status": "failed", "steps": 0, "restarts": 0}
    evaluation = None
    try:
        result |= train(config, planned, built, run_dir, console)
        if config.evaluate:
            decoding = DecodeConfig(config.prompts.max_new_tokens, 0.0, config.seed, built.target.eos_ids)
            evaluation = score(built.target, built.drafter, prompts, decoding, result["checkpoint"], console)
            write_json(run_dir / "evaluation.json", evaluation)
        result["status"] = "finished"
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        result |= {"status": "stopped" if stopped else "failed", "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        write_json(run_dir / "result.json", result)
    print_summary(console, run_dir, result, evaluation, time.monotonic() - started_s)
    return DONE


def build(config: Config, planned: Planned) -> Built:
    """Load the target, make the drafter, join the stages. Raises ValueError for what does not fit together."""
    torch.use_deterministic_algorithms(config.deterministic)
    device = choose_device(config.topology)
    target = load(config.target, device, lambda shape, mask_id: resolve_shape(config.drafter, shape, mask_id))
    check_vocabulary(config, target.drafter_shape.vocab_size)
    drafter = target.new_drafter()
    initialise(drafter, config.seeds.init, target.model.final_norm_weight_H)
    optimizer = build_optimizer(config.optim, drafter.named_parameters())
    step = DrafterStep(drafter, config.loss, optimizer, config.drafter.slots_per_pass, config.optim.max_grad_norm)
    trained = TrainedHashes()
    collate = Collator(planned.conversations, anchor_rule(config))

    def prefetch(plan: BatchPlan) -> TokenBatch:
        batch = collate(plan)
        trained.add(batch)
        return batch

    trainer = DrafterTrainer(step, optimizer, iter(planned.settings))
    return Built(
        target=target,
        drafter=drafter,
        init_sha256=parameters_sha256(drafter),
        stages=Stages(prefetch, target.model, trainer),
        probe=build_probe(config, planned, target, step),
        trained=trained,
    )


def check_vocabulary(config: Config, vocab_size: int) -> None:
    """ValueError where the store may hold ids that the target does not know."""
    stated = read_manifest(config.data.folder)["vocab_size"]
    if stated > vocab_size:
        raise ValueError(
            f"data.path must be tokenised for the target, whose vocabulary is {vocab_size}, got a store for {stated}; "
            "prepare it with the target's tokenizer"
        )


def build_probe(config: Config, planned: Planned, target: LoadedTarget, step: DrafterStep) -> Probe:
    """Held-out batches, packed once by the training edges; a longer sequence than the budget is cut to it."""
    budget_tokens = config.batches.budget_tokens
    held_out = read_split(config.data.folder, "probe", budget_tokens, TooLong.truncate)
    edges = planned.planner.edges
    plans = probe_batches(held_out, config.probe.sequences, edges, budget_tokens, config.seeds.data)
    collate = Collator(held_out, anchor_rule(config))
    return Probe([collate(plan) for plan in plans], target.model, lambda features: read_sums(step.measure(features)))


def train(config: Config, planned: Planned, built: Built, run_dir: Path, console: Console) -> dict[str, Any]:
    """One record a step, a probe now and then, the drafter saved at the end. Returns fields of result.json."""
    started_s = time.monotonic()
    n_steps = len(planned.settings)
    step = tokens = 0
    record: Metrics = {}
    probed = first_probe = probe_metrics(built.probe()) if config.probe.every_steps else {}
    line = run_lockstep(planned.steps(), built.stages, config.pipeline.threads)
    with JsonlSink(run_dir / "metrics.jsonl") as sink, ProgressLine(console, n_steps, time.monotonic) as progress:
        for result, timing in line:
            step, tokens = step + 1, tokens + result.tokens
            if is_probed(step, n_steps, config.probe.every_steps):
                probed = probe_metrics(built.probe())
            elapsed_s = time.monotonic() - started_s
            record = step_metrics(result) | timing_metrics(timing, result.tokens, step / n_steps, elapsed_s)
            if is_probed(step, n_steps, config.probe.every_steps):
                record |= probed
            sink.write(StepRecord(step, elapsed_s, record))
            progress.update(step, mean_loss(result), probed.get("probe/loss"), tokens / elapsed_s)
    return {
        "steps": step,
        "epochs": len(planned.epochs),
        "tokens": tokens,
        "train_s": round(time.monotonic() - started_s, 1),
        "first_probe": first_probe,
        "final_probe": probed,
        "final": record,
        "checkpoint": save_drafter(run_dir, step, built.drafter, built.target.max_position_embeddings).name,
        **built.trained.hashes(),
        "init_sha256": built.init_sha256,
        "probe_sha256": built.probe.sha256(),
    }


def is_probed(step: int, n_steps: int, every_steps: int) -> bool:
    """Every so many steps, and after the last; never where every_steps is 0."""
    return every_steps > 0 and (step % every_steps == 0 or step == n_steps)


def mean_loss(result: StepResult) -> float | None:
    """The step's loss, None where nothing in it counts."""
    return result.sums.loss / result.sums.weight if result.sums.weight else None


def opening_line(config: Config, planned: Planned, built: Built, run_dir: Path) -> str:
    """What is about to happen, and what was cut or left out."""
    used = planned.conversations
    odd = "".join(f", {n} {what}" for n, what in ((used.n_truncated, "truncated"), (used.n_skipped, "skipped")) if n)
    n_parameters = sum(p.numel() for p in built.drafter.parameters())
    return (
        f"{run_dir}: {len(planned.settings)} steps over {len(used.rows)} conversations{odd}, "
        f"{option_name(config.interleave)}, drafter of {n_parameters / 1e6:.2f}M parameters, "
        f"on {built.target.model.device.type}"
    )
