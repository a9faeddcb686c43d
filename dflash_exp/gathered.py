"""The directory of a sweep, a run or several runs -> the runs of a comparison, and what they are judged by.

In: a directory. Out: `Gathered`. A file that is damaged, and a directory of anything else, is a ConfigError.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dflash_exp.compare.runs import Run, read_run
from dflash_exp.config import leaves, plain
from dflash_exp.run_state import Found, find_runs, run_state
from dflash_exp.submitted import frozen_config
from dflash_exp.suggest import ConfigError
from dflash_exp.sweep_directory import command_typed, read_sweep

IDENTIFYING = {"seed", "seeds.init", "seeds.data", "seeds.anchors", "seeds.order"}
"""Keys that every run's configuration has."""


@dataclass(frozen=True)
class Gathered:
    """What one of the places holds that a comparison is made of."""

    place: str
    """As it was asked for."""
    group: str
    analysis: dict[str, Any] | None
    """What the sweep is judged by, frozen when it began; None of runs outside one."""
    runs: list[Run]
    run_dirs: list[Path]
    """Of each run, in their order; empty where they are known from elsewhere."""
    remarks: list[str]
    """What could not be known there."""


def gather(folder: Path) -> Gathered:
    """The jobs of a sweep, a run, or the runs of a folder of them; raises ConfigError for anything else."""
    sweep = read_sweep(folder) if folder.is_dir() else None
    found = find_runs(folder) if folder.is_dir() and (sweep or _has_runs(folder)) else []
    if not found or any(each.run_dir.parent != folder and each.run_dir != folder for each in found):
        raise ConfigError(
            f"DIR must be the directory of a sweep, of a run or of several runs, got {folder}; "
            "`dflash-exp status` shows what is there"
        )
    runs, run_dirs = [_read(each) for each in found], [each.run_dir for each in found]
    if sweep is None:
        return Gathered(str(folder), folder.name, None, runs, run_dirs, [])
    return Gathered(str(folder), sweep.group, sweep.analysis, runs, run_dirs, [])


def _has_runs(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or any(folder.glob("*/config.yaml"))


def _read(found: Found) -> Run:
    """A run with its configuration and its state; raises ConfigError where a file is damaged."""
    state, path = run_state(found.run_dir), found.run_dir / "config.yaml"
    overrides = found.overrides if found.overrides is not None else _typed(found.run_dir)
    config = leaves(_yaml(path)) if path.is_file() else leaves(plain(frozen_config(found.run_dir)))
    if not config.keys() >= IDENTIFYING:
        raise ConfigError(f"{path} must hold a run's configuration, got one without its seeds; put it back")
    try:
        run = read_run(found.run_dir, tuple(overrides), config, state.word, state.error)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not run.environment:
        return run
    typed = command_typed(found.run_dir, run.environment.get("command"))
    return replace(run, environment={**run.environment, "command": typed})


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
