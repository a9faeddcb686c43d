"""The verb train."""

from dflash_exp.launch.children import DONE
from dflash_exp.launch.launchers import Slurm
from dflash_exp.stop import StopSignals
from dflash_exp.verbs.in_turn import trained_here
from dflash_exp.verbs.sweep import begin_sweep
from dflash_exp.verbs.verb import Verb


def train(arguments: list[str]) -> int:
    """Train what the overrides say. A stop may be asked for from the first line on, while seconds of imports pass."""
    with StopSignals() as stop:
        from dflash_exp.compose import compose_jobs

        jobs = compose_jobs(arguments)
        if not jobs:
            return DONE
        launcher = jobs[0].launcher
        if isinstance(launcher, Slurm):
            from dflash_exp.verbs.submit import submit

            return submit(jobs, launcher, stop)
        if jobs[0].in_sweep:
            begin_sweep(jobs)
        return trained_here(jobs, stop)


VERB = Verb(
    "train",
    "OVERRIDES",
    "train; with no overrides the embedded experiment, ending in decoded τ",
    ("dflash-exp train", "dflash-exp train -m interleave=shuffle,stride_jitter seed=0,1,2"),
    train,
)
