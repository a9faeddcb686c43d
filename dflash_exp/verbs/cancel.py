"""The verb cancel."""

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from dflash_exp.launch import queue
from dflash_exp.launch.children import DONE, FAILED
from dflash_exp.queued import held_jobs
from dflash_exp.run_state import Found, find_runs, run_state
from dflash_exp.submitted import jobs_of
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb, say_damaged


def cancel(arguments: list[str]) -> int:
    """Stop what runs and take what waits out of the queue; all of it can be resumed."""
    folder = Path(parsed(_parser(), arguments, "see dflash-exp cancel --help").dir)
    found = find_runs(folder)
    runs = [run for run in found if run.damage is None]
    held = held_jobs(run.run_dir for run in runs)
    job_ids = sorted({str(job.job_id) for run in runs for job in jobs_of(run.run_dir) if job.job_id in held})
    here = [run for run in runs if not _in(run, job_ids) and run_state(run.run_dir).word == "running"]
    complaint = queue.cancel(job_ids) if job_ids else None
    told = [run for run in here if _told_to_stop(run.run_dir)]
    jobs, runs_told = _counted(len(job_ids), "job"), _counted(len(told), "run")
    said = [f"{jobs} cancelled"] * bool(job_ids) + [f"{runs_told} told to stop"] * bool(here)
    print(f"dflash-exp: {', '.join(said) or 'nothing runs or waits'}", file=sys.stderr)
    for run in here:
        if run not in told:
            print(f"dflash-exp: {run.run_dir} runs on another machine: stop it there", file=sys.stderr)
    if complaint is not None:
        print(f"dflash-exp: {complaint}", file=sys.stderr)
    say_damaged(found)
    return DONE if complaint is None and len(told) == len(here) and len(runs) == len(found) else FAILED


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _in(run: Found, job_ids: list[str]) -> bool:
    return any(job.job_id in job_ids for job in jobs_of(run.run_dir))


def _told_to_stop(run_dir: Path) -> bool:
    """Whether the process that holds the run's lock is one of this machine's, and was sent SIGTERM."""
    try:
        host, pid = (run_dir / ".lock").read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{run_dir / '.lock'} must name host and process, got {error!r:.60}; stop it by hand"
        ) from error
    if host != os.uname().nodename:
        return False
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(int(pid), signal.SIGTERM)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp cancel", add_help=False, allow_abbrev=False)
    parser.add_argument("dir", metavar="DIR", help="a run's directory, a sweep's, or a folder of them")
    return parser


VERB = Verb(
    "cancel",
    "DIR",
    "stop what runs, saved, and take what waits out of the queue",
    ("dflash-exp cancel runs/interleaving", "dflash-exp cancel runs/NAME"),
    cancel,
    _parser,
)
