"""A sweep's jobs, one after the other."""

import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.verbs.verb import DONE, FAILED, STOPPED, WRONG_INPUT, refused

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
    return next((code for code in (STOPPED, FAILED, WRONG_INPUT) if code in codes), DONE)


def trained_here(jobs: "list[Job]", stop: StopSignals) -> int:
    """Train them on this machine, as their launcher says."""

    def train(job: "Job") -> int:
        from dflash_exp.rank import start

        return start(job.config, job.overrides, stop)

    return in_turn(jobs, train, lambda: stop.requested is not None)


def _outcome(job: "Job", run: "Callable[[Job], int]") -> int:
    try:
        return run(job)
    except ConfigError as error:
        return refused(error)
    except Exception:  # the run's edge: the sweep goes on, its exit code tells
        traceback.print_exc()
        return FAILED
