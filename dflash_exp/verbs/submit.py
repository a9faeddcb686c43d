"""Runs that go to Slurm's queue: checked, frozen, submitted as one array, and left."""

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.launch import queue
from dflash_exp.launch.children import DONE, FAILED
from dflash_exp.launch.launchers import Slurm
from dflash_exp.run_state import run_state
from dflash_exp.submitted import SUBMITTED, QueuedJob, jobs_of, note_job
from dflash_exp.suggest import ConfigError
from dflash_exp.verbs.in_turn import check_not_forced
from dflash_exp.verbs.status import all_finished, none_at_work, watch
from dflash_exp.verbs.sweep import checked_sweep, freeze_all

if TYPE_CHECKING:
    from dflash_exp.compose import Job
    from dflash_exp.config import Config
    from dflash_exp.launch.slurm import JobShape
    from dflash_exp.submission import Prospect

AT_WORK = ("running", "queued", "finished")
PAUSE_S = 5.0
NOTHING = "nothing to submit: all runs are finished, at work or queued"


def submit(jobs: "list[Job]", launcher: Slurm) -> int:
    """Hand what is missing to the queue; with `dry_run` show what would be; raises ConfigError."""
    jobs = _placed(jobs)
    if jobs[0].in_sweep:
        check_not_forced(jobs)
    begun = checked_sweep(jobs) if jobs[0].in_sweep else None
    wanted = _missing(jobs)
    if not wanted:
        _say(NOTHING)
        return DONE
    found = _prospect(wanted, launcher)
    for line in (found.said(), found.idle()):
        if line is not None:
            _say(line)
    folder = begun.sweep_dir if begun is not None else Path(wanted[0].config.run_dir or "")
    if launcher.dry_run:
        kept = _kept(folder, alone=begun is None)
        return _shown(launcher, _shape(folder, wanted[0].config, kept / "code"), kept, found.n_jobs)
    if not queue.there():
        raise ConfigError(
            "hydra/launcher must find Slurm, there is no squeue on this machine; submit from a login node, "
            "or say hydra.launcher.dry_run=true"
        )
    if begun is not None:
        begun.write()
    freeze_all(wanted)
    hand_over({Path(job.config.run_dir or ""): job.config for job in wanted}, launcher, folder)
    return _waited(folder) if launcher.wait else DONE


def hand_over(runs: "Mapping[Path, Config]", launcher: Slurm, folder: Path) -> None:
    """Submit runs that are frozen, by their directories, and write down their jobs' ids; raises ConfigError."""
    from dflash_exp.launch.code_copy import copy_of_code
    from dflash_exp.launch.job import SlurmTask
    from dflash_exp.launch.slurm import submit as sbatch
    from dflash_exp.launch.slurm import submitter
    from dflash_exp.run_directory import git_state

    paths, alone = [run_dir.absolute() for run_dir in runs], folder in runs
    packs = [paths[first : first + launcher.packed] for first in range(0, len(paths), launcher.packed)]
    tasks = [SlurmTask(tuple(map(str, pack)), launcher.packed > 1, launcher.max_requeues) for pack in packs]
    kept = _kept(folder, alone=alone)
    try:
        code = copy_of_code(kept, git_state())
        job_ids = sbatch(submitter(launcher, _shape(folder, next(iter(runs.values())), code), kept), tasks)
        _note({path: job_id for job_id, pack in zip(job_ids, packs, strict=True) for path in pack}, launcher, folder)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    n_jobs = f"{len(job_ids)} job{'s' * (len(job_ids) > 1)}"
    _say(f"{n_jobs} submitted as {job_ids[0].partition('_')[0]}: what is edited from now on changes nothing; and then")
    next_commands = [f"status {folder} --watch", f"logs {next(iter(runs))} --follow", f"cancel {folder}"]
    for command in (*next_commands, f"resume {folder} --failed", *([] if alone else [f"compare {folder}"])):
        print(f"  dflash-exp {command}", file=sys.stderr)


def _note(job_ids: Mapping[Path, str], launcher: Slurm, folder: Path) -> None:
    """Write down which job each run is, in its directory and in sweep.json; raises OSError and ConfigError."""
    from dflash_exp.sweep_directory import note_job_ids

    now = datetime.now(UTC).isoformat(timespec="seconds")
    for run_dir, job_id in job_ids.items():
        note_job(run_dir, QueuedJob(job_id, asdict(launcher), now))
    note_job_ids(folder, {run_dir.name: job_id for run_dir, job_id in job_ids.items()})


def launcher_of(run_dir: Path) -> Slurm:
    """What a run was submitted with last; it does not wait now. Raises ConfigError."""
    from dflash_exp.door import checked_launcher

    held = {"_target_": f"{Slurm.__module__}.{Slurm.__qualname__}", **jobs_of(run_dir)[-1].launcher}
    launcher = checked_launcher(held)
    assert isinstance(launcher, Slurm)
    return replace(launcher, wait=False)


def _placed(jobs: "list[Job]") -> "list[Job]":
    """A run without a sweep has its directory, too."""
    if jobs[0].in_sweep:
        return jobs
    from dflash_exp.config import run_directory
    from dflash_exp.run_directory import place

    config = jobs[0].config
    return [replace(jobs[0], config=replace(config, run_dir=str(place(run_directory(config), force=config.force))))]


def _missing(jobs: "list[Job]") -> "list[Job]":
    """Those that neither are finished nor at work nor in the queue."""
    run_dirs = [Path(job.config.run_dir or "") for job in jobs]
    held = queue.in_queue(job.job_id for run_dir in run_dirs for job in jobs_of(run_dir))
    words = [run_state(run_dir, held).word for run_dir in run_dirs]
    return [job for job, word in zip(jobs, words, strict=True) if word not in AT_WORK]


def _prospect(jobs: "list[Job]", launcher: Slurm) -> "Prospect":
    from dflash_exp.compose import told_apart
    from dflash_exp.planning import measured_speed
    from dflash_exp.submission import Asked, prospect

    try:
        speeds = {job.config.plan.speed_from: job.speed_from for job in jobs}
        measured = {path: measured_speed(Path(path or ""), run) for path, run in speeds.items() if run is not None}
        named = told_apart([job.overrides for job in jobs])
        configs = [job.config for job in jobs]
        speeds_of = [measured.get(config.plan.speed_from) for config in configs]
        return prospect([Asked(*of_run) for of_run in zip(named, configs, speeds_of, strict=True)], launcher)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _shape(folder: Path, config: "Config", code: Path) -> "JobShape":
    from dflash_exp.launch.slurm import JobShape

    return JobShape(folder.name, config.topology.nodes, config.topology.ranks_per_node, code)


def _kept(folder: Path, *, alone: bool) -> Path:
    """Where submitit's files and the copy of the code lie: in a sweep's directory, or with what was asked of a run."""
    return ((folder / SUBMITTED if alone else folder) / "slurm").absolute()


def _shown(launcher: Slurm, shape: "JobShape", kept: Path, n_jobs: int) -> int:
    from dflash_exp.launch.slurm import submitter, test_only

    text = submitter(launcher, shape, kept).text(n_jobs)
    print(text)
    _say(f"nothing is submitted; sbatch --test-only: {test_only(text)}")
    return DONE


def _waited(folder: Path) -> int:
    counts = watch(folder, lambda: time.sleep(PAUSE_S), none_at_work)
    return DONE if all_finished(counts) else FAILED


def _say(line: str) -> None:
    print(f"dflash-exp: {line}", file=sys.stderr)
