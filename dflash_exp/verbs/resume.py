"""The verb resume."""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.launch.children import DONE, WRONG_INPUT
from dflash_exp.queued import held_jobs
from dflash_exp.run_state import Found, find_runs, run_state
from dflash_exp.stop import StopSignals
from dflash_exp.submitted import is_submitted, jobs_of
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.sweep_directory import read_sweep
from dflash_exp.verbs.in_turn import trained_here
from dflash_exp.verbs.verb import Verb, say_damaged

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def resume(arguments: list[str]) -> int:
    """Run what is missing or was stopped, from the configurations that were frozen."""
    given = parsed(_parser(), arguments, "see dflash-exp resume --help")
    folder = Path(given.dir)
    alone = (folder / "config.yaml").is_file()
    if not alone and not is_submitted(folder) and read_sweep(folder) is None:
        raise ConfigError(f"DIR must be the directory of one run or one sweep, got {folder}; see dflash-exp status")
    found = find_runs(folder)
    say_damaged(found)
    runs = [run for run in found if run.damage is None]
    words = {"missing", "stopped"} | ({"failed"} if given.failed or alone else set())
    jobs = {run.run_dir: jobs_of(run.run_dir) for run in runs}
    held = held_jobs(jobs)
    states = {run.run_dir: run_state(run.run_dir, held).word for run in runs}
    wanted = [run for run in runs if states[run.run_dir] in words]
    _say(Counter(states.values()), words)
    if not wanted:
        return DONE if len(runs) == len(found) else WRONG_INPUT
    from dflash_exp.verbs.submit import alone_in

    queued = [] if given.here else [run for run in wanted if jobs[run.run_dir]]
    here = [run for run in wanted if run not in queued]
    if queued:
        with alone_in(folder):
            _submit_again(queued, folder)
    with StopSignals() as stop:
        code = trained_here([_job(run) for run in here], stop) if here else DONE
    return code if code != DONE or len(runs) == len(found) else WRONG_INPUT


def _submit_again(runs: list[Found], folder: Path) -> None:
    """To the queue, as they were submitted last."""
    from dflash_exp.verbs.submit import hand_over, launcher_of

    launchers = [launcher_of(run.run_dir) for run in runs]
    while launchers:
        alike = [run for run, launcher in zip(runs, launchers, strict=True) if launcher == launchers[0]]
        hand_over({run.run_dir: _job(run).config for run in alike}, launchers[0], folder)
        runs = [run for run in runs if run not in alike]
        launchers = [launcher for launcher in launchers if launcher != launchers[0]]


def _say(counts: "Counter[str]", wanted: set[str]) -> None:
    """How many runs of each state there are, and which of them are left alone."""
    runs = [f"{counts[word]} {word}" for word in counts if word in wanted]
    left = [f"{counts[word]} {word}" for word in counts if word not in wanted]
    beside = f"; left as they are: {', '.join(left)}" if left else ""
    hint = " (--failed runs what failed, too)" if counts["failed"] and "failed" not in wanted else ""
    print(f"dflash-exp: to run: {', '.join(runs) or 'nothing'}{beside}{hint}", file=sys.stderr)


def _job(run: Found) -> "Job":
    """What was frozen, where it lies now."""
    from dflash_exp.compose import Job
    from dflash_exp.door import load
    from dflash_exp.submitted import frozen_config, read_overrides

    begun = (run.run_dir / "config.yaml").is_file()
    config = load(run.run_dir / "config.yaml") if begun else frozen_config(run.run_dir)
    typed = run.run_dir / ("overrides.yaml" if begun else "submitted/overrides.yaml")
    overrides = run.overrides if run.overrides is not None else read_overrides(typed)
    return Job(replace(config, run_dir=str(run.run_dir), force=False), overrides, in_sweep=run.overrides is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp resume", add_help=False, allow_abbrev=False)
    parser.add_argument("dir", metavar="DIR", help="a sweep's directory or a run's")
    parser.add_argument("--failed", action="store_true", help="of a sweep, what failed, too")
    parser.add_argument("--here", action="store_true", help="on this machine, although it was submitted to a queue")
    return parser


VERB = Verb(
    "resume",
    "DIR",
    "run what is missing or was stopped, from the configurations frozen when it began",
    ("dflash-exp resume runs/interleaving", "dflash-exp resume runs/interleaving --failed"),
    resume,
    _parser,
)
