"""The run's mirrors in W&B and trackio, opened with what they are told of it.

In: a configuration, the run directory, the plan's figures. Out: sinks, perhaps none; metrics.jsonl is not among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_exp.config import Config, identity, plain, run_directory
from dflash_exp.durable import write_folder
from dflash_exp.launch.queue import at_the_limit
from dflash_exp.plan.interleave import option_name
from dflash_exp.run_directory import free_directory
from dflash_exp.suggest import ConfigError
from dflash_exp.sweep_directory import command_typed, read_sweep
from dflash_exp.telemetry.mirror import BESIDE, RunLabels, Sink
from dflash_exp.telemetry.trackio_sink import open_trackio
from dflash_exp.telemetry.wandb_sink import WandbSink, open_wandb


def run_labels(
    config: Config, run_dir: Path, plan: Mapping[str, Any], where: Mapping[str, Any], overrides: Sequence[str]
) -> RunLabels:
    """`plan` is plan.json, `where` environment.json, `overrides` what was typed; where the run is a sweep's job, its
    sweep.json says that, and what it is judged by. The client adds the tags and job type of `telemetry.wandb`."""
    number = run_dir.name.removeprefix(run_directory(config).name)  # "-2" of a run that stands beside another
    kinds = [option_name(config.interleave), option_name(config.buckets), config.target.path, config.name]
    return RunLabels(
        identity=identity(config) + number,
        name=f"{config.name} {option_name(config.interleave)} s{config.seed}{number}",
        group=config.telemetry.wandb.group,
        job_type="train",
        tags=[*dict.fromkeys(kinds)],
        config=plain(config) | dict(zip(BESIDE, beside(run_dir, plan, where, overrides), strict=True)),
    )


def beside(run_dir: Path, plan: Mapping[str, Any], where: Mapping[str, Any], overrides: Sequence[str]) -> list[Any]:
    """Of each of `BESIDE` what it holds."""
    try:
        sweep = read_sweep(run_dir.parent)
    except ConfigError:  # a damaged sweep.json stops no run
        sweep = None
    jobs = [] if sweep is None else [entry for entry in sweep.entries if entry.run_dir == run_dir.name]
    typed = jobs[0].overrides if jobs else list(overrides)
    figures = {name: plan[name] for name in FIGURES}
    analysis = sweep.analysis if sweep is not None and jobs else None
    command = command_typed(run_dir, where["command"])
    return [figures, *(where[key] for key in ("git", "devices", "packages")), command, typed, analysis]


FIGURES = (
    "strategy", "edges", "counts", "sequences", "tokens", "anchors", "padding_share", "batches_sha256", "order_sha256",
    "plan_sha256", "max_run", "mean_run", "max_prefix_deviation", "exhausted_at", "tail_batches", "window_tv",
    "step_mix_tv", "anchor_weight", "lr_share", "steps_per_epoch",
)  # fmt: skip
"""Fields of plan.json that runs are grouped and filtered by."""


@dataclass(frozen=True)
class Mirrors:
    """All of them as one, perhaps none."""

    wandb: WandbSink | None
    trackio: Sink | None

    def sinks(self) -> list[Sink]:
        """Where records go."""
        return [sink for sink in (self.wandb, self.trackio) if sink is not None]

    def log_prompts(self, evaluation: Mapping[str, Any]) -> None:
        """The decoded prompts of evaluation.json, one by one."""
        if self.wandb is not None:
            self.wandb.log_prompts(evaluation["per_prompt"])

    def log_jumps(self, jumps: Sequence[Mapping[str, Any]]) -> None:
        """The jumps of result.json, one by one."""
        if self.wandb is not None:
            self.wandb.log_jumps(jumps)

    def log_plan(self, run_dir: Path, write: Callable[[Path], None]) -> None:
        """The first epoch's plan, its order and picture, which `write` leaves in an empty folder; where all is asked
        for."""
        if self.wandb is not None and self.wandb.wants_all:
            folder = free_directory(run_dir / "wandb" / "plan")
            folder.parent.mkdir(exist_ok=True)
            write_folder(folder, write)
            self.wandb.log_plan(sorted(folder.iterdir()))

    def close(self, status: str, drafter: Path | None, error: str | None) -> None:
        """No record comes after this; the drafter is uploaded; a failure is told, and a stop that nobody mends."""
        if self.wandb is not None:
            limit = at_the_limit()
            if status == "stopped" and limit is not None:
                self.wandb.alert("run stopped for good", limit)
            elif status == "stopped":
                self.wandb.mark_preempting()
            if status == "failed":
                self.wandb.alert("run failed", error or "no error was kept")
            if drafter is not None:
                self.wandb.log_drafter(drafter)
        for sink in self.sinks():
            sink.close(status)


NO_MIRRORS = Mirrors(None, None)
"""Of a rank that is not the first."""


def open_mirrors(config: Config, run_dir: Path, labels: RunLabels, say: Callable[[str], None]) -> Mirrors:
    """Those that the configuration asks for. Raises ValueError where trackio is asked for and not installed."""
    telemetry = config.telemetry
    trackio = open_trackio(telemetry.wandb.project, labels, say) if telemetry.trackio else None
    return Mirrors(open_wandb(telemetry.wandb, labels, run_dir, say), trackio)
