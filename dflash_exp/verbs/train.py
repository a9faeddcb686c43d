"""The verb train."""

from typing import TYPE_CHECKING

from dflash_exp.stop import StopSignals
from dflash_exp.verbs.in_turn import in_turn
from dflash_exp.verbs.verb import DONE, Verb

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def train(arguments: list[str]) -> int:
    """Train what the overrides say. A stop may be asked for from the first line on, while seconds of imports pass."""
    with StopSignals() as stop:
        from dflash_exp.compose import compose_jobs

        jobs = compose_jobs(arguments)
        if not jobs:
            return DONE
        return in_turn(jobs, lambda job: _start(job, stop), lambda: stop.requested is not None)


def _start(job: "Job", stop: StopSignals) -> int:
    from dflash_exp.rank import start

    return start(job.config, job.overrides, stop)


VERB = Verb(
    "train",
    "OVERRIDES",
    "train; with no overrides the embedded experiment, ending in decoded τ",
    ("dflash-exp train", "dflash-exp train -m interleave=shuffle,stride_jitter seed=0,1,2"),
    train,
)
