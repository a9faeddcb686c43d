"""A sweep's directory, or several, -> its comparison, from files alone; the verb `compare`.

In: directories and what the user asks. Out: a folder with the page, its figures, Markdown, runs.csv and compare.json.
What the sweep is judged by stands in its sweep.json; whatever else is asked is headed exploratory.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from dflash_exp.analysis import METRICS
from dflash_exp.compare.arms import block_of
from dflash_exp.compare.figures import Picture, pictures
from dflash_exp.compare.judged import Question
from dflash_exp.compare.page import files_of
from dflash_exp.compare.report import Asked, Report, report_of
from dflash_exp.compare.runs import Run, read_run
from dflash_exp.config import leaves, plain
from dflash_exp.durable import write_whole
from dflash_exp.nothing_learned import curves_of, has_losses
from dflash_exp.run_state import Found, find_runs, run_state
from dflash_exp.submitted import frozen_config
from dflash_exp.suggest import ConfigError, did_you_mean
from dflash_exp.sweep_directory import Sweep, read_sweep

FOLDER, PAGE = "compare", "compare.html"
MARGIN, SEEDS = 0.01, 3
"""Of runs that were begun without an analysis."""


@dataclass(frozen=True)
class Options:
    """What the user asks beside the directories; None: as the sweep says."""

    metric: str | None
    baseline: str | None
    out: Path | None


@dataclass(frozen=True)
class Gathered:
    """What lies in one of the directories."""

    folder: Path
    sweep: Sweep | None
    runs: list[Found]


def compare(folders: Sequence[Path], options: Options) -> tuple[Report, Path]:
    """Compare, write, and say where; raises ConfigError."""
    gathered = [gather(folder) for folder in folders]
    question, frozen = question_of(gathered, options)
    runs = [read(one.folder, found) for one in gathered for found in one.runs]
    group = ", ".join(dict.fromkeys(one.sweep.group if one.sweep else one.folder.name for one in gathered))
    curves, remark = curves_of(_of_one_seed(runs, [found for one in gathered for found in one.runs]))
    asked = Asked(group, frozen, _commands(runs, folders, options), [] if remark is None else [remark])
    try:
        report = report_of(runs, question, asked)
    except ValueError as error:
        raise ConfigError(f"{error}; --baseline takes one of them") from error
    return report, write(report, pictures(report, curves), options.out or folders[0] / FOLDER)


def _of_one_seed(runs: Sequence[Run], found: Sequence[Found]) -> list[Path]:
    """The directories of all runs of the first seed of which one keeps its sequences' losses."""
    whose = {block_of(run) for run, each in zip(runs, found, strict=True) if has_losses(each.run_dir)}
    begun = [(run, each.run_dir) for run, each in zip(runs, found, strict=True) if len(run.buckets)]
    return [run_dir for run, run_dir in begun if block_of(run) in sorted(whose)[:1]]


def gather(folder: Path) -> Gathered:
    """The jobs of a sweep, a run, or the runs of a folder of them; raises ConfigError for anything else."""
    sweep = read_sweep(folder) if folder.is_dir() else None
    runs = find_runs(folder) if folder.is_dir() and (sweep or _has_runs(folder)) else []
    if not runs or any(found.run_dir.parent != folder and found.run_dir != folder for found in runs):
        raise ConfigError(
            f"DIR must be the directory of a sweep, of a run or of several runs, got {folder}; "
            "`dflash-exp status` shows what is there"
        )
    return Gathered(folder, sweep, runs)


def _has_runs(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or any(folder.glob("*/config.yaml"))


def question_of(gathered: Sequence[Gathered], options: Options) -> tuple[Question, dict[str, Any] | None]:
    """What is asked, and `analysis` as it was frozen; raises ConfigError."""
    if options.metric is not None and options.metric not in METRICS:
        mend = did_you_mean(options.metric, METRICS) or f"; the metrics are {', '.join(METRICS)}"
        raise ConfigError(f"--metric must be a metric of runs, got {options.metric}{mend}")
    held = [one.sweep.analysis if one.sweep else None for one in gathered]
    if any(analysis != held[0] for analysis in held) and None in (options.metric, options.baseline):
        raise ConfigError(
            f"DIRs must be judged by one analysis, {gathered[0].folder} and "
            f"{next(one.folder for one, own in zip(gathered, held, strict=True) if own != held[0])} have their own; "
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


def read(folder: Path, found: Found) -> Run:
    """A run with its configuration and its state; raises ConfigError where a file is damaged."""
    state, path = run_state(found.run_dir), found.run_dir / "config.yaml"
    overrides = found.overrides if found.overrides is not None else _typed(found.run_dir)
    config = leaves(_yaml(path)) if path.is_file() else leaves(plain(frozen_config(found.run_dir)))
    if not config.keys() >= {"seed", "seeds.init", "seeds.data", "seeds.anchors", "seeds.order"}:
        raise ConfigError(f"{path} must hold a run's configuration, got one without its seeds; put it back")
    try:
        return read_run(found.run_dir, tuple(overrides), config, state.word, state.error)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _typed(run_dir: Path) -> list[str]:
    """What overrides.yaml says; nothing where it is not there."""
    path = run_dir / "overrides.yaml"
    held = _yaml(path) if path.is_file() else []
    return [str(each) for each in held] if isinstance(held, list) else []


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path} must be YAML as the run wrote it, got what cannot be read ({reason:.80}); put it back"
        ) from error


def _commands(runs: Sequence[Run], folders: Sequence[Path], options: Options) -> list[str]:
    """What trained the first run that says so, and what compares them."""
    typed = next((run.environment["command"] for run in runs if run.environment.get("command")), None)
    given = {"--metric": options.metric, "--baseline": options.baseline}
    asked = [part for name, value in given.items() if value is not None for part in (name, value)]
    compares = shlex.join(["dflash-exp", "compare", *(str(folder) for folder in folders), *asked])
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
