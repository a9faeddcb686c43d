"""Runs that go to Slurm's queue: checked, frozen, submitted as one array, and left."""

import fcntl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dflash_exp.launch import queue
from dflash_exp.launch.children import DONE, FAILED, STOPPED, WRONG_INPUT
from dflash_exp.launch.launchers import Slurm
from dflash_exp.queued import held_jobs
from dflash_exp.run_state import run_state
from dflash_exp.stop import StopSignals
from dflash_exp.submitted import SUBMITTED, QueuedJob, jobs_of, note_job, settle_job
from dflash_exp.suggest import ConfigError
from dflash_exp.verbs.in_turn import check_not_forced
from dflash_exp.verbs.status import all_finished, none_at_work, watch
from dflash_exp.verbs.sweep import checked_sweep, freeze_all

if TYPE_CHECKING:
    from dflash_exp.compose import Job
    from dflash_exp.config import Config
    from dflash_exp.launch.slurm import JobShape
    from dflash_exp.submission import Prospect

LEFT_ALONE = ("running", "queued", "finished")
PAUSE_S = 5.0
NOTHING = "nothing to submit: all runs are finished, at work or queued"
STOPPED_BEFORE = "stopped before anything was submitted: the same command goes on"


def submit(jobs: "list[Job]", launcher: Slurm, stop: StopSignals) -> int:
    """Hand what is missing to the queue; with `dry_run` show what would be; raises ConfigError."""
    jobs = _placed(jobs)
    folder = Path(jobs[0].config.run_dir or "")
    if jobs[0].in_sweep:
        check_not_forced(jobs)
        folder = folder.parent
    if not launcher.dry_run and not queue.there():
        raise ConfigError(
            "hydra/launcher must find Slurm, there is no squeue on this machine; submit from a login node, "
            "or say hydra.launcher.dry_run=true"
        )
    with ExitStack() as until_handed_over:
        if not launcher.dry_run:
            until_handed_over.enter_context(alone_in(folder))
        code = _handed_over(jobs, launcher, folder, stop)
    return _waited(folder, stop) if code == DONE and launcher.wait and not launcher.dry_run else code


def _handed_over(jobs: "list[Job]", launcher: Slurm, folder: Path, stop: StopSignals) -> int:
    begun = checked_sweep(jobs) if jobs[0].in_sweep else None
    wanted = _missing(jobs)
    if not wanted:
        _say(NOTHING)
        return DONE
    found = _prospect(wanted, launcher)
    for line in (found.said(), found.idle()):
        if line is not None:
            _say(line)
    if launcher.dry_run:
        return _shown(launcher, wanted[0].config, folder, _kept(folder, alone=begun is None), found.n_jobs)
    if stop.requested is not None:
        _say(STOPPED_BEFORE)
        return STOPPED
    if begun is not None:
        begun.write()
    new = {} if begun is None else begun.new
    freeze_all(job for job in wanted if Path(job.config.run_dir or "").name not in new)
    hand_over({Path(job.config.run_dir or ""): job.config for job in wanted}, launcher, folder)
    return DONE


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else submits into this directory meanwhile. Raises ConfigError where somebody does."""
    try:
        (folder / SUBMITTED).mkdir(parents=True, exist_ok=True)
        file = (folder / SUBMITTED / ".lock").open("a")
    except OSError as error:
        raise ConfigError(
            f"{folder} must be a directory that can be written, it is not: {error.strerror}; name another"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{folder} must take one submission at a time, another is under way; wait") from error
        except OSError:  # a file system without locks
            pass
        yield


def hand_over(runs: "Mapping[Path, Config]", launcher: Slurm, folder: Path) -> None:
    """Submit runs that are frozen, by their directories, and write down their jobs' ids; raises ConfigError.

    They are written down before, too, with a token in place of the ids: what is killed on the way is found again.
    """
    from dflash_exp.launch.code_copy import copy_of_code
    from dflash_exp.launch.job import SlurmTask
    from dflash_exp.launch.slurm import submit as sbatch
    from dflash_exp.launch.slurm import submitter
    from dflash_exp.run_directory import git_state
    from dflash_exp.sweep_directory import note_job_ids

    paths, alone, token = [run_dir.absolute() for run_dir in runs], folder in runs, uuid4().hex
    packs = [paths[first : first + launcher.packed] for first in range(0, len(paths), launcher.packed)]
    kept, now = _kept(folder, alone=alone), datetime.now(UTC).isoformat(timespec="seconds")
    try:
        code = copy_of_code(kept, git_state())
        shape = _shape(folder, next(iter(runs.values())), code, token)
        tasks = [
            SlurmTask(tuple(map(str, pack)), launcher.packed > 1, launcher.max_requeues, str(code)) for pack in packs
        ]
        for index, pack in enumerate(packs):
            for path in pack:
                in_array = index if len(packs) > 1 else -1
                note_job(path, QueuedJob(None, asdict(launcher), now, token, in_array))
        job_ids = sbatch(submitter(launcher, shape, kept), tasks)
        of_runs = {path: job_id for job_id, pack in zip(job_ids, packs, strict=True) for path in pack}
        for path, job_id in of_runs.items():
            settle_job(path, job_id)
        note_job_ids(folder, {path.name: job_id for path, job_id in of_runs.items()})
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    _say_what_next(job_ids, next(iter(runs)), folder, alone=alone)


def _say_what_next(job_ids: list[str], first: Path, folder: Path, *, alone: bool) -> None:
    n_jobs = f"{len(job_ids)} job{'s' * (len(job_ids) > 1)}"
    _say(f"{n_jobs} submitted as {job_ids[0].partition('_')[0]}: what is edited from now on changes nothing; and then")
    next_commands = [f"status {folder} --watch", f"logs {first} --follow", f"cancel {folder}"]
    for command in (*next_commands, f"resume {folder} --failed", *([] if alone else [f"compare {folder}"])):
        print(f"  dflash-exp {command}", file=sys.stderr)


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
    held = held_jobs(run_dirs)
    words = [run_state(run_dir, held).word for run_dir in run_dirs]
    return [job for job, word in zip(jobs, words, strict=True) if word not in LEFT_ALONE]


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


def _shape(folder: Path, config: "Config", code: Path, token: str) -> "JobShape":
    from dflash_exp.launch.slurm import JobShape

    return JobShape(folder.name, config.topology.nodes, config.topology.ranks_per_node, code, token)


def _kept(folder: Path, *, alone: bool) -> Path:
    """Where submitit's files and the copy of the code lie: in a sweep's directory, or with what was asked of a run."""
    return ((folder / SUBMITTED if alone else folder) / "slurm").absolute()


def _shown(launcher: Slurm, config: "Config", folder: Path, kept: Path, n_jobs: int) -> int:
    from dflash_exp.launch.slurm import submitter, test_only

    text = submitter(launcher, _shape(folder, config, kept / "code", "dry"), kept).text(n_jobs)
    print(text)
    said, taken = test_only(text)
    _say(f"nothing is submitted; sbatch --test-only: {said}")
    return DONE if taken else WRONG_INPUT


def _waited(folder: Path, stop: StopSignals) -> int:
    """0 where all have finished; 75 where the waiting was stopped, which leaves the jobs where they are."""
    asked = lambda: stop.requested is not None  # noqa: E731
    counts = watch(folder, lambda: time.sleep(PAUSE_S), lambda counts: none_at_work(counts) or asked())
    if asked() and not none_at_work(counts):
        _say("no longer waiting: the jobs stay where they are")
        return STOPPED
    return DONE if all_finished(counts) else FAILED


def _say(line: str) -> None:
    print(f"dflash-exp: {line}", file=sys.stderr)
