"""A sweep's directory: which job lies where, and sweep.json, which says what was asked for and how it will be judged.

```
sweep.json              group, analysis as it was when the first job began, jobs [{overrides, run_dir, job_id}]
<index>-<identity>/     a job's run directory, which `run_dir` names; its `submitted/` was frozen at that moment
```
A job that is known keeps its directory, whatever its index is in the command that asks for it again. sweep.json is
written last, so that what it names is there. No torch and no Hydra: the verb `status` reads it in milliseconds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dflash_exp.durable import write_whole
from dflash_exp.suggest import ConfigError

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Entry:
    """One job of a sweep."""

    overrides: list[str]
    """What the user typed for it."""
    run_dir: str
    """Its directory's name in the sweep's."""
    job_id: str | None = None
    """Its last one in a queue, as the queue prints it."""


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
        return Sweep(held["group"], held["analysis"], [_entry(job) for job in held["jobs"]])
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


def write_sweep(sweep_dir: Path, sweep: Sweep, freeze: Callable[[], None] = lambda: None) -> None:
    """Write sweep.json, after `freeze` has written what it names. Raises ConfigError where the directory cannot be."""
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        freeze()
        write_whole(sweep_dir / SWEEP, json.dumps(_as_json(sweep), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(
            f"hydra.sweep.dir must be a directory that can be written, {sweep_dir} is not: {error.strerror}; "
            "name another"
        ) from error


def note_job_ids(sweep_dir: Path, job_ids: Mapping[str, str]) -> None:
    """Write the queue's ids into sweep.json, by the names of the jobs' directories; raises ConfigError."""
    sweep = read_sweep(sweep_dir)
    if sweep is not None:
        entries = [replace(entry, job_id=job_ids.get(entry.run_dir, entry.job_id)) for entry in sweep.entries]
        write_sweep(sweep_dir, replace(sweep, entries=entries))


def command_typed(run_dir: Path, own: list[str] | None) -> list[str] | None:
    """The command by which the run was asked for; `own`, of the process that trained it, where it was not frozen."""
    try:
        return json.loads((run_dir / "submitted" / "environment.json").read_text(encoding="utf-8"))["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return own


def _as_json(sweep: Sweep) -> dict[str, Any]:
    return {"group": sweep.group, "analysis": sweep.analysis, "jobs": [asdict(entry) for entry in sweep.entries]}


def _entry(job: Mapping[str, Any]) -> Entry:
    return Entry(job["overrides"], job["run_dir"], job.get("job_id"))


def _index(name: str) -> int:
    return int(name.partition("-")[0])


def _known(sweep_dir: Path) -> list[Entry]:
    """Jobs that have a directory, or a name for one: of sweep.json, and of a sweep that was begun without it."""
    there = read_sweep(sweep_dir)
    entries = [] if there is None else there.entries
    folders = sorted(path.name for path in sweep_dir.glob("[0-9]*-*") if re.match(r"\d+-", path.name))
    named = {entry.run_dir for entry in entries}
    return entries + [Entry([], name) for name in folders if name not in named]
