"""A sweep's directory: which job lies where, and sweep.json, which says what was asked for and how it will be judged.

```
sweep.json              group, analysis as it was when the first job began, jobs [{overrides, run_dir}]
configs/<run>.yaml      every job's configuration, frozen at that moment
<index>-<identity>/     a job's run directory, which `run_dir` names
```
A job that is known keeps its directory, whatever its index is in the command that asks for it again. sweep.json is
written last, so that what it names is there. No torch and no Hydra: the verb `status` reads it in milliseconds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_exp.durable import write_whole
from dflash_exp.suggest import ConfigError

if TYPE_CHECKING:
    from dflash_exp.config import Config

SWEEP = "sweep.json"
CONFIGS = "configs"


@dataclass(frozen=True)
class Entry:
    """One job of a sweep."""

    overrides: list[str]
    """What the user typed for it."""
    run_dir: str
    """Its directory's name in the sweep's."""


@dataclass(frozen=True)
class Sweep:
    """What sweep.json holds."""

    group: str
    analysis: dict[str, Any] | None
    entries: list[Entry]


def read_sweep(sweep_dir: Path) -> Sweep | None:
    """The sweep that lies there, None where none does; raises ConfigError for what is none."""
    path = sweep_dir / SWEEP
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return Sweep(held["group"], held["analysis"], [Entry(job["overrides"], job["run_dir"]) for job in held["jobs"]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} must hold group, analysis and jobs, got what cannot be read ({type(error).__name__}: {error}); "
            "put it back as it was, or name another hydra.sweep.dir"
        ) from error


def names(sweep_dir: Path, jobs: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Each job's directory, `<index>-<identity>`, given identity and overrides in Hydra's order.

    One that is there already is kept; where a sweep has several of one identity (they differ in how they run), the one
    with the same overrides. New jobs of a sweep that was begun are numbered on.
    """
    known = _known(sweep_dir)
    given, free = {entry.run_dir: set(entry.overrides) for entry in known}, [entry.run_dir for entry in known]
    n_new, found = 1 + max((_index(name) for name in free), default=-1), []
    for identity, overrides in jobs:
        same = [name for name in free if name.partition("-")[2] == identity]
        same.sort(key=lambda name: given[name] != set(overrides))
        if same:
            free.remove(same[0])
        found.append(same[0] if same else f"{n_new}-{identity}")
        n_new += not same
    return found


def frozen_config(sweep_dir: Path, run_dir: str) -> "Config":
    """The configuration of a job as it was when it was added; raises ConfigError."""
    from dflash_exp.door import load  # and with it OmegaConf, which status has no use for

    path = sweep_dir / CONFIGS / f"{run_dir}.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} must hold a job's configuration, got no file; put it back as it was")
    return load(path)


def frozen(sweep_dir: Path, there: Sweep | None, analysis: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the sweep will be judged by: what was frozen, else what is wanted. Raises ConfigError where they differ."""
    if there is None or analysis is None or analysis == there.analysis:
        return analysis if there is None else there.analysis
    before = there.analysis
    keys = [key for key in analysis if before is not None and before.get(key) != analysis[key]]
    odd = ", ".join(f"{key} ({before[key]} there, {analysis[key]} here)" for key in keys if before and key in before)
    raise ConfigError(
        f"analysis must stay as it was when {sweep_dir} began, which {f'differs in {odd}' if odd else 'has none'}; "
        "leave it, or name another hydra.sweep.dir"
    )


def write_sweep(sweep_dir: Path, sweep: Sweep, configs: Mapping[str, str]) -> None:
    """Write sweep.json, and before it the text of every new job's configuration, given by its directory's name.

    Raises ConfigError where the directory cannot be written.
    """
    try:
        (sweep_dir / CONFIGS).mkdir(parents=True, exist_ok=True)
        for run_dir, text in configs.items():
            write_whole(sweep_dir / CONFIGS / f"{run_dir}.yaml", text)
        write_whole(sweep_dir / SWEEP, json.dumps(_as_json(sweep), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(
            f"hydra.sweep.dir must be a directory that can be written, {sweep_dir} is not: {error.strerror}; "
            "name another"
        ) from error


def _as_json(sweep: Sweep) -> dict[str, Any]:
    jobs = [{"overrides": entry.overrides, "run_dir": entry.run_dir} for entry in sweep.entries]
    return {"group": sweep.group, "analysis": sweep.analysis, "jobs": jobs}


def _index(name: str) -> int:
    return int(name.partition("-")[0])


def _known(sweep_dir: Path) -> list[Entry]:
    """Jobs that have a directory, or a name for one: of sweep.json, and of a sweep that was begun without it."""
    there = read_sweep(sweep_dir)
    entries = [] if there is None else there.entries
    folders = sorted(path.name for path in sweep_dir.glob("[0-9]*-*") if re.match(r"\d+-", path.name))
    named = {entry.run_dir for entry in entries}
    return entries + [Entry([], name) for name in folders if name not in named]
