"""The verb resume."""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.run_state import Found, find_runs, run_state
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.sweep_directory import read_sweep
from dflash_exp.verbs.in_turn import trained_in_turn
from dflash_exp.verbs.verb import DONE, Verb

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def resume(arguments: list[str]) -> int:
    """Run what is missing or was stopped, from the configurations that were frozen."""
    given = parsed(_parser(), arguments, "see dflash-exp resume --help")
    folder = Path(given.dir)
    alone = (folder / "config.yaml").is_file()
    if not alone and read_sweep(folder) is None:
        raise ConfigError(f"DIR must be the directory of one run or one sweep, got {folder}; see dflash-exp status")
    runs = find_runs(folder)
    words = {"missing", "stopped"} | ({"failed"} if given.failed or alone else set())
    states = {run.run_dir: run_state(run.run_dir).word for run in runs}
    wanted = [run for run in runs if states[run.run_dir] in words]
    _say(Counter(states.values()), words)
    if not wanted:
        return DONE
    with StopSignals() as stop:
        return trained_in_turn([_job(run) for run in wanted], stop)


def _say(counts: "Counter[str]", wanted: set[str]) -> None:
    """How many runs of each state there are, and which of them are left alone."""
    runs = [f"{counts[word]} {word}" for word in counts if word in wanted]
    left = [f"{counts[word]} {word}" for word in counts if word not in wanted]
    beside = f"; left as they are: {', '.join(left)}" if left else ""
    hint = " (--failed runs what failed, too)" if counts["failed"] and "failed" not in wanted else ""
    print(f"dflash-exp: to run: {', '.join(runs) or 'nothing'}{beside}{hint}", file=sys.stderr)


def _job(run: Found) -> "Job":
    """What was frozen, where it lies now."""
    import yaml

    from dflash_exp.compose import Job
    from dflash_exp.door import load
    from dflash_exp.sweep_directory import frozen_config

    begun = (run.run_dir / "config.yaml").is_file()
    config = load(run.run_dir / "config.yaml") if begun else frozen_config(run.run_dir.parent, run.run_dir.name)
    typed = run.run_dir / "overrides.yaml"
    overrides = run.overrides if run.overrides is not None else yaml.safe_load(typed.read_text(encoding="utf-8"))
    return Job(replace(config, run_dir=str(run.run_dir), force=False), overrides, in_sweep=run.overrides is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp resume", add_help=False, allow_abbrev=False)
    parser.add_argument("dir", metavar="DIR", help="a sweep's directory or a run's")
    parser.add_argument("--failed", action="store_true", help="of a sweep, what failed, too")
    return parser


VERB = Verb(
    "resume",
    "DIR",
    "run what is missing or was stopped, from the configurations frozen when it began",
    ("dflash-exp resume runs/interleaving", "dflash-exp resume runs/interleaving --failed"),
    resume,
    _parser,
)
