"""A sweep's jobs on this machine: one after the other, or side by side."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.launch.children import FAILED, STOPPED, of_all
from dflash_exp.launch.launchers import InTurn, Local
from dflash_exp.run_state import run_state
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.duration import duration
from dflash_exp.verbs.verb import refused

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def in_turn(jobs: "list[Job]", run: "Callable[[Job], int]", asked_to_stop: Callable[[], bool]) -> int:
    """Run the jobs one after the other: a failed one does not lose the rest, a stop on request stops them all."""
    codes: list[int] = []
    for number, job in enumerate(jobs, start=1):
        if len(jobs) > 1:
            print(f"[{number}/{len(jobs)}] {' '.join(job.overrides)}", file=sys.stderr)
        if asked_to_stop():
            print("stopped before anything was begun: the same command goes on", file=sys.stderr)
            return STOPPED
        codes.append(run(job) if len(jobs) == 1 else _outcome(job, run))
        if codes[-1] == STOPPED:
            break
    return of_all(codes)


def trained_here(jobs: "list[Job]", stop: StopSignals) -> int:
    """Train them on this machine, as their launcher says."""
    asked = lambda: stop.requested is not None  # noqa: E731
    launcher = jobs[0].launcher
    if isinstance(launcher, Local) and len(jobs) > 1:
        check_not_forced(jobs)
        run_dirs = [Path(job.config.run_dir or "") for job in jobs]
        wanted = [run_dir for run_dir in run_dirs if run_state(run_dir).word != "finished"]
        if len(wanted) < len(run_dirs):
            print(f"dflash-exp: {len(run_dirs) - len(wanted)} of {len(run_dirs)} runs are finished", file=sys.stderr)
        return side_by_side(wanted, launcher.n_jobs, asked)

    def train(job: "Job") -> int:
        from dflash_exp.rank import start

        return start(job.config, job.overrides, stop)

    return in_turn(jobs, train, asked)


def check_not_forced(jobs: "list[Job]") -> None:
    """ConfigError for force=true, which would make directories that the sweep does not know."""
    if any(job.config.force for job in jobs):
        raise ConfigError(
            "force must be false in a sweep that hydra/launcher runs elsewhere, got true; to train it anew name "
            "another hydra.sweep.dir"
        )


def side_by_side(run_dirs: list[Path], n_jobs: int, asked_to_stop: Callable[[], bool]) -> int:
    """Train what is frozen in these directories, some at a time, each in a process of its own."""
    from dflash_exp.distributed import visible_devices
    from dflash_exp.launch.job import devices_of, worker
    from dflash_exp.launch.workers import Progress, run_workers

    def tell(progress: Progress) -> None:
        took = "" if progress.code is None else f" after {duration(progress.wall_s)}"
        name, word = progress.command.name, progress.word
        print(f"[{progress.number}/{len(run_dirs)}] {name}: {word}{took}", file=sys.stderr, flush=True)

    workers = [worker(run_dir, "run.out", {}) for run_dir in run_dirs]
    visible = visible_devices()
    return of_all(run_workers(workers, n_jobs, tell, asked_to_stop, lambda place: devices_of(place, n_jobs, visible)))


def _outcome(job: "Job", run: "Callable[[Job], int]") -> int:
    if isinstance(job.launcher, InTurn) and job.launcher.stop_at_failure:
        return run(job)
    try:
        return run(job)
    except ConfigError as error:
        return refused(error)
    except Exception:  # the run's edge: the sweep goes on, its exit code tells
        traceback.print_exc()
        return FAILED
