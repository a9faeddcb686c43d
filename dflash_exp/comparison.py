"""Sweeps, runs or groups of W&B -> their comparison; the verb `compare`.

In: places and what the user asks. Out: a folder with the page, its figures, Markdown, runs.csv, compare.json and
report_spec.json. A place is a directory, of which files alone are read, or `wandb:ENTITY/PROJECT/GROUP`. What the sweep
is judged by was frozen with it; whatever else is asked is headed exploratory.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from dflash_exp.analysis import METRICS
from dflash_exp.compare.arms import block_of
from dflash_exp.compare.figures import Picture, pictures
from dflash_exp.compare.judged import Question
from dflash_exp.compare.page import files_of
from dflash_exp.compare.report import Asked, Report, report_of
from dflash_exp.compare.runs import Run
from dflash_exp.durable import write_whole
from dflash_exp.gathered import Gathered, gather
from dflash_exp.gathered_wandb import PREFIX, gather_group
from dflash_exp.nothing_learned import curves_of, has_losses
from dflash_exp.suggest import ConfigError, did_you_mean

FOLDER, PAGE = "compare", "compare.html"
MARGIN, SEEDS = 0.01, 3
"""Of runs that were begun without an analysis."""


@dataclass(frozen=True)
class Options:
    """What the user asks beside the places; None: as the sweep says."""

    metric: str | None
    baseline: str | None
    out: Path | None


def compare(places: Sequence[str], options: Options) -> tuple[Report, Path]:
    """Compare, write, and say where; raises ConfigError."""
    gathered = [gather_group(place) if place.startswith(PREFIX) else gather(Path(place)) for place in places]
    question, frozen = question_of(gathered, options)
    runs = [run for one in gathered for run in one.runs]
    curves, remark = curves_of(_of_one_seed(gathered))
    remarks = [line for one in gathered for line in one.remarks] + ([] if remark is None else [remark])
    group = ", ".join(dict.fromkeys(one.group for one in gathered))
    asked = Asked(group, frozen, _commands(runs, places, options), remarks)
    try:
        report = report_of(runs, question, asked)
    except ValueError as error:
        raise ConfigError(f"{error}; --baseline takes one of them") from error
    return report, write(report, pictures(report, curves), options.out or _beside(places[0]))


def _beside(place: str) -> Path:
    """In the directory of a sweep; of a group of W&B, in the current one."""
    return Path(FOLDER) if place.startswith(PREFIX) else Path(place) / FOLDER


def _of_one_seed(gathered: Sequence[Gathered]) -> list[Path]:
    """The directories of all runs of the first seed of which one keeps its sequences' losses."""
    there = [pair for one in gathered if one.run_dirs for pair in zip(one.runs, one.run_dirs, strict=True)]
    whose = {block_of(run) for run, run_dir in there if has_losses(run_dir)}
    return [run_dir for run, run_dir in there if len(run.buckets) and block_of(run) in sorted(whose)[:1]]


def question_of(gathered: Sequence[Gathered], options: Options) -> tuple[Question, dict[str, Any] | None]:
    """What is asked, and `analysis` as it was frozen; raises ConfigError."""
    if options.metric is not None and options.metric not in METRICS:
        mend = did_you_mean(options.metric, METRICS) or f"; the metrics are {', '.join(METRICS)}"
        raise ConfigError(f"--metric must be a metric of runs, got {options.metric}{mend}")
    held = [one.analysis for one in gathered]
    if any(analysis != held[0] for analysis in held) and None in (options.metric, options.baseline):
        raise ConfigError(
            f"DIRs must be judged by one analysis, {gathered[0].place} and "
            f"{next(one.place for one, own in zip(gathered, held, strict=True) if own != held[0])} have their own; "
            "say --metric and --baseline, for an exploratory look"
        )
    frozen = held[0] if all(analysis == held[0] for analysis in held) else None
    return _question(frozen, options), frozen


def _question(frozen: dict[str, Any] | None, options: Options) -> Question:
    analysis = frozen or {
        "primary_metric": "probe/loss", "baseline": None, "contrast": None, "margin": MARGIN, "seeds": SEEDS,
        "differs_in": "setting",
    }  # fmt: skip
    metric, baseline = options.metric or analysis["primary_metric"], options.baseline or analysis["baseline"]
    same = frozen is not None and (metric, baseline) == (analysis["primary_metric"], analysis["baseline"])
    return Question(
        metric=metric,
        baseline=baseline,
        contrast=analysis["contrast"] if baseline == analysis["baseline"] else None,
        margin=analysis["margin"],
        seeds=analysis["seeds"],
        differs_in=analysis["differs_in"],
        exploratory=not same,
    )


def _commands(runs: Sequence[Run], places: Sequence[str], options: Options) -> list[str]:
    """What trained the first run that says so, and what compares them."""
    typed = next((run.environment["command"] for run in runs if run.environment.get("command")), None)
    given = {"--metric": options.metric, "--baseline": options.baseline}
    asked = [part for name, value in given.items() if value is not None for part in (name, value)]
    compares = shlex.join(["dflash-exp", "compare", *places, *asked])
    return [compares] if typed is None else [shlex.join(["dflash-exp", *typed[1:]]), compares]


def write(report: Report, figures: Sequence[Picture], wanted: Path) -> Path:
    """Everything into a new folder, `wanted` or the first of wanted-2, ... that is free; raises ConfigError."""
    names = (wanted if n == 1 else wanted.with_name(f"{wanted.name}-{n}") for n in count(1))
    out = next(path for path in names if not path.exists())
    try:
        (out / "figures").mkdir(parents=True)
        for name, content in files_of(report, figures).items():
            write_whole(out / name, content)
    except OSError as error:
        raise ConfigError(
            f"--out must be a folder that can be written, {out} is not: {error.strerror}; name another"
        ) from error
    return out
