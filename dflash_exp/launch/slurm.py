"""Runs to Slurm's queue, through submitit: one sbatch, an array where there are several jobs.

In: what the launcher's settings say, the shape of a job, and what each of its tasks calls. Out: job ids, at once; or,
dry, the text that sbatch would get. submitit writes that text and starts the tasks with srun; of what it has beside
that (checkpoints in a handler of one rank, pickled results, sacct) nothing is used.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from copy import copy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from dflash_exp.launch.launchers import Slurm

ENVIRONMENT = (
    "export PYTHONSAFEPATH=1",  # not the code that lies in the current directory
    "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",  # srun >= 22.05 does not inherit it, and all ranks share one core
    "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}",
)

HELD_BACK = (
    "import os, signal, sys; "
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""For a bare Python that begins the real one: a USR2 that comes while that one imports waits for its handler. Slurm may
send it up to a minute ahead of `signal_delay_s`, so to a job of a few minutes as it starts."""


@dataclass(frozen=True)
class JobShape:
    """What is the same for every job of a submission."""

    name: str
    nodes: int
    ranks_per_node: int
    code: Path
    """The folder of the package's copy that the jobs run."""
    token: str
    """The jobs' comment, by which they are found again."""


class Sbatch(SlurmExecutor):
    """submitit's executor, which can also be made where there is no Slurm, to see what it would submit."""

    @classmethod
    def affinity(cls) -> int:
        """Its constructor refuses 0."""
        return 1

    def text(self, n_jobs: int) -> str:
        """What sbatch would be given."""
        dry = copy(self)
        dry.parameters = self.parameters | ({} if n_jobs == 1 else {"map_count": n_jobs})
        return dry._make_submission_file_text(self._submitit_command_str, "dry")


def submitter(launcher: Slurm, shape: JobShape, folder: Path) -> Sbatch:
    """What submits; `folder` holds submitit's files and must be visible to the whole cluster."""
    executor = Sbatch(folder, python=shlex.join([sys.executable, "-I", "-S", "-c", HELD_BACK]))
    executor.update_parameters(**parameters(launcher, shape))
    return executor


def parameters(launcher: Slurm, shape: JobShape) -> dict[str, Any]:
    """submitit's, which are sbatch's with underscores, and its own."""
    python_path = f'export PYTHONPATH={shlex.quote(str(shape.code))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    own: dict[str, object] = {"requeue": True} if launcher.max_requeues else {"no-requeue": True}
    others = {option: True if value is None else value for option, value in launcher.sbatch.items()}
    return {
        "job_name": shape.name,
        "comment": shape.token,
        "time": launcher.timeout_min,
        "nodes": shape.nodes,
        "ntasks_per_node": shape.ranks_per_node,
        "cpus_per_task": launcher.cpus_per_task * launcher.packed,
        "gpus_per_node": launcher.gpus_per_node or None,
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "array_parallelism": launcher.array_parallelism,
        "signal_delay_s": launcher.signal_delay_s,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": [*launcher.setup, python_path, *ENVIRONMENT],
        "additional_parameters": own | ({"mem": launcher.memory} if launcher.memory else {}) | others,
        "srun_args": ["--kill-on-bad-exit=0"],  # who is left says why, and saves what there is
    }


def submit(executor: Sbatch, tasks: Sequence[Callable[[], None]]) -> list[str]:
    """Submit a job for each, and return their ids. Raises ValueError with what sbatch says against it."""
    try:
        with redirect_stderr(StringIO()):  # submitit prints there what it raises
            if len(tasks) == 1:
                return [executor.submit(tasks[0]).job_id]
            with executor.batch():
                jobs = [executor.submit(task) for task in tasks]
        return [job.job_id for job in jobs]
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        raise ValueError(f"sbatch refuses the job: {_last_words(error)}") from error


def test_only(text: str) -> tuple[str, bool]:
    """What `sbatch --test-only` says to it, in a line, and whether it would take it."""
    if shutil.which("sbatch") is None:
        return "there is no sbatch on this machine to ask", True
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(["sbatch", "--test-only", file.name], capture_output=True, text=True, timeout=60)
    return " ".join((done.stderr or done.stdout).split()), done.returncode == 0


def _last_words(error: Exception) -> str:
    said = [line.strip() for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
    return "; ".join(line.partition("sbatch: error: ")[2] or line for line in said)
