"""What runs in a process that a launcher made for a run: the run, from what was frozen when it was asked for.

In: a run's directory, or those of a pack that shares a Slurm job. Out: an exit code; in a Slurm job also the way back
to its queue: a run that was told to stop saves, and the job requeues itself. Nothing is in the pickle but paths: after
a node has failed the same pickle runs again, and the run goes on from what lies in its directory.
"""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_exp.launch import queue
from dflash_exp.launch.children import DONE, FAILED, STOPPED, WRONG_INPUT, of_all, stop_with_the_launcher
from dflash_exp.launch.workers import Command, Progress, run_workers
from dflash_exp.stop import StopSignals, say_at_once
from dflash_exp.submitted import forget_error, frozen_config, frozen_overrides, note_error
from dflash_exp.suggest import ConfigError


@dataclass(frozen=True)
class SlurmTask:
    """What each task of a Slurm job calls: as a rank of one run, or for a pack of runs."""

    run_dirs: tuple[str, ...]
    """One, or those of a pack, each of one rank."""
    packed: bool
    max_requeues: int
    code: str
    """The folder of the package's copy that is to run."""

    def __call__(self) -> None:
        """Train to the end, or requeue; exits with 75 where a stopped run is left as it is."""
        if not Path(__file__).is_relative_to(self.code):
            sys.exit(f"dflash-exp: the job must run the copy in {self.code}, got {__file__}; can it be read here?")
        os.environ[queue.LIMIT] = str(self.max_requeues)
        with StopSignals() as stop:  # and not submitit's handlers, which know one rank
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
    write_to_logs(run_dir)
    address, port = queue.meeting_point()
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return run_submitted(run_dir, stop, speaks=os.environ["SLURM_PROCID"] == "0")


def packed(run_dirs: Sequence[str]) -> int:
    """Every run in a process with a share of the job's cores and CUDA devices; 75 where one of them was stopped."""
    n_runs, log = len(run_dirs), f"slurm-{queue.own_job_id()}-0.out"
    threads = max(1, int(os.environ.get("SLURM_CPUS_PER_TASK", "1")) // n_runs)
    workers = [worker(Path(run_dir), log, {"OMP_NUM_THREADS": str(threads)}) for run_dir in run_dirs]
    from dflash_exp.distributed import visible_devices

    visible = visible_devices()
    return of_all(run_workers(workers, n_runs, tell, share=lambda place: devices_of(place, n_runs, visible)))


def worker(run_dir: Path, log: str, environment: Mapping[str, str]) -> Command:
    """The command that runs what was asked for in a directory, and writes into its logs/."""
    argv = [sys.executable, "-m", "dflash_exp.launch.job", str(run_dir)]
    return Command(run_dir.name, argv, environment, run_dir / "logs" / log)


def devices_of(place: int, n_places: int, visible: Sequence[str]) -> dict[str, str]:
    """The CUDA devices of one of so many processes: as many as all can have, one of them where there are too few."""
    if not visible:
        return {}
    share = max(1, len(visible) // n_places)
    first = place * share % len(visible)
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + share])}


def tell(progress: Progress) -> None:
    """Say that a run begins, or how it ended."""
    took = "" if progress.code is None else f" after {progress.wall_s:.0f} s"
    say_at_once(f"[{progress.number}] {progress.command.name}: {progress.word}{took}")


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
        stop_with_the_launcher()
        return run_submitted(run_dir, stop, speaks=True)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # a loop that is stuck must not hold the process
