"""What state a run is in, from its files and, where there is one, the queue; while it runs, too, and without torch.

In: a run's directory, and what the queue says. Out: `RunState`. A run is at work while a process holds its `.lock`, or
while the queue says that its job runs: locks need not reach from a node to where one looks. To ask for that, the lock
is taken, shared, for some microseconds; a run that begins in just these would find its directory in use.
"""

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from dflash_exp.launch.queue import InQueue
from dflash_exp.submitted import SUBMITTED, error_of, is_submitted, jobs_of
from dflash_exp.suggest import ConfigError
from dflash_exp.sweep_directory import read_sweep

Word = Literal["finished", "running", "queued", "stopped", "failed", "missing"]
LAST_BYTES = 65536
"""Of metrics.jsonl: several records."""


@dataclass(frozen=True)
class RunState:
    """One run at one moment."""

    word: Word
    """Queued: its job waits, for the first time or again. Stopped: begun, not at its end and at work nowhere, whether
    on request or killed."""
    step: int
    """Optimizer steps done."""
    n_steps: int | None
    """Of the whole run; None where only its planner knows."""
    eta_s: float | None
    tokens_per_s: float | None
    """Both of the last step."""
    probe_loss: float | None
    """The last one."""
    tau: float | None
    """Decoded."""
    error: str | None
    """Its last line, of a run that failed."""
    job: str | None = None
    """Its job in the queue, and why it waits or where it runs."""


MISSING = RunState("missing", 0, None, None, None, None, None, None)
NOBODY: Mapping[str, InQueue] = {}


def run_state(run_dir: Path, in_queue: Mapping[str, InQueue] = NOBODY) -> RunState:
    """Raises ConfigError where a file of it cannot be read."""
    jobs = [job.job_id for job in jobs_of(run_dir) if job.job_id is not None]
    held = [job_id for job_id in jobs if job_id in in_queue]
    queued = in_queue[held[-1]] if held else None
    job = None if queued is None else f"job {held[-1]}, {queued.reason}"
    word = "running" if at_work(run_dir) else None if queued is None else "queued" if queued.waits else "running"
    if not (run_dir / "config.yaml").is_file():
        error = error_of(run_dir) or (_died_early(run_dir, jobs[-1]) if jobs else None)
        if word is None and error is not None:
            return replace(MISSING, word="failed", error=_last_line(error))
        return replace(MISSING, word=word or "missing", job=job)
    return _begun(run_dir, word, job)


def _died_early(run_dir: Path, job_id: str) -> str | None:
    """Of a job that has written, and left nothing of the run; None of one that never ran."""
    logs = [folder / "slurm" / f"{job_id}_0_log.out" for folder in (run_dir.parent, run_dir / SUBMITTED)]
    log = next((path for path in logs if path.is_file()), None)
    return None if log is None else f"job {job_id} ended before the run began: see {log}"


def _begun(run_dir: Path, word: str | None, job: str | None) -> RunState:
    """Of a run with records; `word` is what is said of it elsewhere than in its result."""
    result, last = _object(run_dir / "result.json"), _last_record(run_dir / "metrics.jsonl")
    ended = {"finished": "finished", "failed": "failed"}.get(result.get("status", ""), "stopped")
    word = ended if word is None or ended == "finished" else word
    probes = [fields["probe/loss"] for fields in (last, result.get("final_probe", {})) if "probe/loss" in fields]
    return RunState(
        word=word,  # type: ignore[arg-type]
        step=last.get("step", 0),
        n_steps=result["steps"] if word == "finished" else _n_steps(run_dir),
        eta_s=last.get("progress/eta_s"),
        tokens_per_s=last.get("throughput/tokens_per_s"),
        probe_loss=next(iter(probes), None),
        tau=_object(run_dir / "evaluation.json").get("tau_pooled"),
        error=_last_line(result.get("error")) if word == "failed" else None,
        job=job,
    )


def at_work(run_dir: Path) -> bool:
    """Whether a process holds the run's lock. False on a file system without locks."""
    try:
        with (run_dir / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _n_steps(run_dir: Path) -> int | None:
    """Of a run of steps, or of one epoch; epochs are composed anew and may differ in theirs."""
    path = run_dir / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if config["steps"] is not None:
            return config["steps"]
        return _object(run_dir / "plan.json").get("steps_per_epoch") if config["epochs"] == 1 else None
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must hold a run's configuration, got {error!r:.60}; put it back") from error


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} must hold a JSON object, got what cannot be read ({error}); put it back") from error
    if not isinstance(held, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {held!r:.40}; put it back")
    return held


def _last_record(path: Path) -> dict[str, Any]:
    """The last whole line, of which a run at work may just be writing the next; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    try:
        return json.loads(lines[-1]) if lines else {}
    except ValueError as error:
        raise ConfigError(f"{path} must end with a JSON object a line, got {lines[-1]!r:.60}") from error


def _last_line(error: str | None) -> str | None:
    return error.strip().splitlines()[-1] if error else None


@dataclass(frozen=True)
class Found:
    """A run, or a job of a sweep that is one or will be."""

    run_dir: Path
    overrides: list[str] | None
    """What sweep.json says that the user typed; None outside a sweep."""
    damage: str | None = None
    """Why nothing more is known of it, where its sweep.json or the list of its jobs cannot be read."""


def find_runs(folder: Path) -> list[Found]:
    """The run, the jobs of the sweep, or those of all runs and sweeps in the folder; raises ConfigError for none.

    A sweep in the folder that cannot be read is one line, which hides nothing beside it.
    """
    what = "DIR must be the directory of a run or a sweep, or a folder of them"
    if not folder.is_dir():
        raise ConfigError(f"{what}, got {folder}, which is no directory; say where `dflash-exp train` put them")
    found = _runs_of(folder)
    if found is None:
        found = [run for path in sorted(folder.iterdir(), key=_by_number) if path.is_dir() for run in _inside(path)]
    if not found:
        raise ConfigError(f"{what}, got {folder}, which holds none; say where `dflash-exp train` put them")
    return [run if run.damage else replace(run, damage=_damaged_jobs(run.run_dir)) for run in found]


def _inside(folder: Path) -> list[Found]:
    try:
        return _runs_of(folder) or []
    except ConfigError as error:
        return [Found(folder, None, str(error))]


def _damaged_jobs(run_dir: Path) -> str | None:
    try:
        jobs_of(run_dir)
    except ConfigError as error:
        return str(error)
    return None


def _runs_of(folder: Path) -> list[Found] | None:
    """None where the folder itself is neither a run nor a sweep."""
    if (folder / "config.yaml").is_file() or (folder / ".lock").is_file() or is_submitted(folder):
        return [Found(folder, None)]
    sweep = read_sweep(folder)
    return None if sweep is None else [Found(folder / entry.run_dir, entry.overrides) for entry in sweep.entries]


def _by_number(path: Path) -> tuple[int, str]:
    """2-x before 10-x."""
    first = path.name.partition("-")[0]
    return (int(first) if first.isdecimal() else -1, path.name)
