"""Which runs have a job that waits or runs; and what a broken submission left unwritten is written down.

In: run directories. Out: the queue's jobs by id, as `run_state` takes them. A submission notes its jobs with a token
before Slurm gets them and with their ids afterwards: one that was killed in between is found again by the token.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash_exp.launch.queue import InQueue, QueueSilent, in_queue, with_comment
from dflash_exp.submitted import jobs_of, settle_job
from dflash_exp.suggest import ConfigError


def held_jobs(run_dirs: Iterable[Path]) -> dict[str, InQueue]:
    """Raises ConfigError where a queue is there and does not answer, or a file cannot be read."""
    wanted = list(run_dirs)
    try:
        adopt(wanted)
        return in_queue(job.job_id for run_dir in wanted for job in jobs_of(run_dir) if job.job_id is not None)
    except QueueSilent as error:
        raise ConfigError(str(error)) from error


def adopt(run_dirs: Sequence[Path]) -> None:
    """Write down the ids of jobs that are in the queue and whose submission was broken off. Raises QueueSilent."""
    lost = [(run_dir, jobs[-1]) for run_dir in run_dirs if (jobs := jobs_of(run_dir)) and jobs[-1].job_id is None]
    numbers = {token: with_comment(token) for token in {job.token for _, job in lost}}
    for run_dir, job in lost:
        number = numbers[job.token]
        if number is not None:
            settle_job(run_dir, number if job.index < 0 else f"{number}_{job.index}")
