"""What Slurm says of jobs, and what it is told: squeue, scontrol, scancel. No sacct, which not every site has.

In: job ids as Slurm prints them (123, or 123_4 of an array). Out: their states; a job that is not in the queue any
more has none.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

TIMEOUT_S = 60
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
AT_WORK = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")

LIMIT = "DFLASH_EXP_MAX_REQUEUES"
"""The environment's name for how often a job may go back to its queue, for those who want to tell."""


class QueueSilent(RuntimeError):
    """Slurm is there and does not answer: what waits or runs is not known."""


@dataclass(frozen=True)
class InQueue:
    """A job that has not ended."""

    state: str
    """Slurm's word."""
    reason: str
    """Why it waits, or where it runs."""

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn, again perhaps."""
        return self.state in WAITING


@dataclass(frozen=True)
class Requeued:
    """What came of the wish to go back to the queue."""

    done: bool
    said: str


def there() -> bool:
    """Whether this machine can ask Slurm."""
    return shutil.which("squeue") is not None


def in_queue(job_ids: Iterable[str]) -> dict[str, InQueue]:
    """Those jobs that wait or run, by id; nothing where there is no Slurm. Raises QueueSilent."""
    wanted = {job_id.partition("_")[0] for job_id in job_ids}
    if not wanted or not there():
        return {}
    rows = _rows([f"--jobs={','.join(sorted(wanted))}", "--format=%i|%T|%R"])
    found = {job_id: InQueue(state, reason.strip("()")) for job_id, state, reason in rows}
    return {job_id: job for job_id, job in found.items() if job.state in WAITING + AT_WORK}


def with_comment(comment: str) -> str | None:
    """The number of a job, or of an array, that was submitted with this comment and has not ended; None for none.
    Raises QueueSilent."""
    if not there():
        return None
    rows = _rows(["--me", "--format=%F|%k|%T"])
    return next((number for number, said, _ in rows if said == comment), None)


def _rows(arguments: list[str]) -> list[list[str]]:
    """squeue's, of three columns; none for jobs that have ended so long ago that Slurm has forgotten them."""
    done = _asked(["squeue", "--noheader", "--array", *arguments])
    if done is not None and done.returncode != 0 and "Invalid job id" in done.stderr:
        return []
    if done is None or done.returncode != 0:
        why = "no answer" if done is None else " ".join(done.stderr.split())
        raise QueueSilent(f"squeue must answer, got {why}; what waits or runs is not known: try again")
    return [line.strip().split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]


def cancel(job_ids: Iterable[str]) -> str | None:
    """Take jobs out of the queue, or stop them; what Slurm has against it, None for nothing."""
    done = _asked(["scancel", *job_ids])
    return "scancel does not answer" if done is None else done.stderr.strip() or None


def own_job_id() -> str:
    """Of the job that this process is in."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{task}"


def meeting_point() -> tuple[str, str]:
    """Address and port at which the tasks of this job's step meet: the same for all, from what Slurm tells each."""
    nodes = os.environ["SLURM_STEP_NODELIST"]
    first = nodes
    if "[" in nodes or "," in nodes:
        done = _asked(["scontrol", "show", "hostnames", nodes])
        first = nodes if done is None else done.stdout.split()[0]
    address = "127.0.0.1" if os.environ.get("SLURM_STEP_NUM_NODES") == "1" else first
    return address, str(20_000 + int(os.environ["SLURM_JOB_ID"]) % 10_000)


def at_the_limit() -> str | None:
    """That this job has gone back to its queue as often as it may; None where it may again, or is in no queue."""
    limit = os.environ.get(LIMIT)
    spent = None if limit is None else _spent(int(limit))
    return None if spent is None else f"{spent}: only dflash-exp resume goes on"


def _n_requeues() -> int:
    """How often this job has gone back to its queue."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _spent(max_requeues: int) -> str | None:
    """That it may not again, None where it may."""
    n = _n_requeues()
    return None if n < max_requeues else f"requeued {n} times, which is hydra.launcher.max_requeues={max_requeues}"


def requeue(max_requeues: int) -> Requeued:
    """Send this job back to the queue, unless it is ending anyhow or has gone back too often.

    A job that is cancelled is COMPLETING when its tasks hear of it, one whose time is nearly up or that is to make room
    RUNNING.
    """
    # Not SLURM_JOB_ID: an array's last task has the array's own number, under which all of it would be requeued.
    job_id = own_job_id()
    shown = _asked(["scontrol", "--oneliner", "show", "job", job_id])
    found = re.search(r"\bJobState=(\w+)", "" if shown is None else shown.stdout)
    state = "RUNNING" if found is None else found[1]
    if state in WAITING:
        return Requeued(True, "requeued by Slurm")
    if state != "RUNNING":
        return Requeued(False, f"the job ends ({state}), cancelled perhaps: not requeued; dflash-exp resume goes on")
    spent = _spent(max_requeues)
    if spent is not None:
        return Requeued(False, f"{spent}: not requeued; dflash-exp resume goes on")
    done = _asked(["scontrol", "requeue", job_id])
    if done is None or done.returncode != 0:
        why = "scontrol does not answer" if done is None else done.stderr.strip()
        return Requeued(False, f"not requeued ({why}); dflash-exp resume goes on")
    return Requeued(True, f"requeued, {_n_requeues() + 1} of at most {max_requeues} times")


def _asked(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """None where there is no answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
