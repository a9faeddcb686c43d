"""What runs in a process that a launcher made for a run: the run, from what was frozen when it was asked for.

In: a run's directory, or those of a pack that shares a Slurm job. Out: an exit code; in a Slurm job also the way back
to its queue: a run that was told to stop saves, and the job requeues itself. Nothing is in the pickle but paths: after
a node has failed the same pickle runs again, and the run goes on from what lies in its directory.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_exp.launch import queue
from dflash_exp.launch.workers import Command, run_workers
from dflash_exp.stop import StopSignals, say_at_once
from dflash_exp.submitted import forget_error, frozen_config, frozen_overrides, note_error
from dflash_exp.suggest import ConfigError

DONE, FAILED, WRONG_INPUT, STOPPED = 0, 1, 2, 75


@dataclass(frozen=True)
class SlurmTask:
    """What each task of a Slurm job calls: as a rank of one run, or for a pack of runs."""

    run_dirs: tuple[str, ...]
    """One, or those of a pack, each of one rank."""
    packed: bool
    max_requeues: int

    def __call__(self) -> None:
        """Train to the end, or requeue; exits with 75 where a stopped run is left as it is."""
        with StopSignals() as stop:  # and not submitit's handlers, which know one rank
            write_to_logs(Path(self.run_dirs[0]))
            code = packed(self.run_dirs) if self.packed else as_rank(Path(self.run_dirs[0]), stop)
            if code == STOPPED and os.environ["SLURM_PROCID"] == "0":
                requeued = queue.requeue(self.max_requeues)
                say_at_once(f"dflash-exp: {requeued.said}")
                code = DONE if requeued.done else STOPPED
            elif code == STOPPED:  # the first rank sees to it
                code = DONE
        if code != DONE:
            sys.exit(code)


def as_rank(run_dir: Path, stop: StopSignals) -> int:
    """One rank of the run, whose place Slurm says."""
    address, port = queue.meeting_point()
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return run_submitted(run_dir, stop, speaks=os.environ["SLURM_PROCID"] == "0")


def packed(run_dirs: Sequence[str]) -> int:
    """Every run in a process with a share of the job's CUDA devices; 75 where one of them was stopped."""
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    codes = run_workers([worker(run_dir) for run_dir in run_dirs], len(run_dirs), devices)
    return next((code for code in (STOPPED, FAILED, WRONG_INPUT) if code in codes), DONE)


def worker(run_dir: str) -> Command:
    """The command that runs what was asked for in a directory."""
    return Command([sys.executable, "-P", "-m", "dflash_exp.launch.job", run_dir], Path(run_dir) / "logs" / "run.out")


def run_submitted(run_dir: Path, stop: StopSignals, *, speaks: bool) -> int:
    """Train what was asked for here; what keeps it from beginning is left in its directory, by the rank that speaks."""
    from dataclasses import replace

    from dflash_exp.rank import start

    try:
        if speaks:
            forget_error(run_dir)
        config = replace(frozen_config(run_dir), run_dir=str(run_dir), force=False)
        return start(config, frozen_overrides(run_dir), stop)
    except ConfigError as error:
        if speaks:
            note_error(run_dir, str(error))
            say_at_once(f"dflash-exp: {error}")
        return WRONG_INPUT
    except Exception as error:  # the process's edge
        if speaks:
            note_error(run_dir, f"{type(error).__name__}: {error}")
        say_at_once(traceback.format_exc())
        return FAILED


def write_to_logs(run_dir: Path) -> None:
    """From here on this process writes into the run's logs/, behind what an earlier attempt has written."""
    folder = run_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    job, task = queue.own_job_id(), os.environ["SLURM_PROCID"]
    log = os.open(folder / f"slurm-{job}-{task}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


def main(run_dir: Path) -> int:
    """A run in a process of its own on this machine."""
    with StopSignals() as stop:
        return run_submitted(run_dir, stop, speaks=True)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # a loop that is stuck must not hold the process
