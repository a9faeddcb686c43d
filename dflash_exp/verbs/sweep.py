"""What comes before a sweep's first job: it is checked as a whole, and written down."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_exp.suggest import ConfigError

if TYPE_CHECKING:
    from dflash_exp.compose import Job
    from dflash_exp.config import Config
    from dflash_exp.sweep_directory import Entry, Sweep


@dataclass(frozen=True)
class Begun:
    """A sweep that can be what it says, with what is new in it; nothing of it is written yet."""

    sweep_dir: Path
    sweep: "Sweep"
    new: "Mapping[str, Job]"
    """Jobs that sweep.json does not know yet, by their directories' names."""

    def write(self) -> None:
        """Freeze the new jobs, then sweep.json, which names them. Raises ConfigError."""
        from dflash_exp.sweep_directory import write_sweep

        if self.new or not (self.sweep_dir / "sweep.json").is_file():
            write_sweep(self.sweep_dir, self.sweep, lambda: freeze_all(self.new.values()))


def begin_sweep(jobs: "list[Job]") -> None:
    """Write what a sweep is, or add to it what is new; under a launcher the first rank does. Raises ConfigError."""
    from dflash_exp.ranks import place_of

    if (place_of(os.environ) or (0, 1))[0] == 0:
        checked_sweep(jobs).write()


def checked_sweep(jobs: "list[Job]") -> Begun:
    """Raises ConfigError where the sweep cannot be what it says."""
    from dflash_exp.sweep_directory import Entry, Sweep, frozen, read_sweep

    sweep_dir = Path(jobs[0].config.run_dir or "").parent
    there, asked = read_sweep(sweep_dir), jobs[0].analysis
    analysis = frozen(sweep_dir, there, None if asked is None else asked.as_json())
    entries = [] if there is None else there.entries
    new = _new(jobs, entries)
    taken = {entry.run_dir.partition("-")[0] for entry in entries} & {name.partition("-")[0] for name in new}
    if taken:
        raise ConfigError(f"{sweep_dir} must not change meanwhile, another command has added jobs; say the same again")
    entries = [*entries, *(Entry(job.overrides, name) for name, job in new.items())]
    if new and analysis is not None:
        _check(analysis, entries, sweep_dir, {name: job.config for name, job in new.items()})
    group = (there or jobs[0].config.telemetry.wandb).group or sweep_dir.name
    return Begun(sweep_dir, Sweep(group, analysis, entries), new)


def freeze_all(jobs: "Iterable[Job]") -> None:
    """Write what each is asked for into its directory; raises ConfigError."""
    from dflash_exp.door import to_yaml
    from dflash_exp.run_directory import surroundings
    from dflash_exp.submitted import freeze

    where = surroundings()
    for job in jobs:
        run_dir = Path(job.config.run_dir or "")
        try:
            freeze(run_dir, to_yaml(job.config), job.overrides, where)
        except OSError as error:
            raise ConfigError(
                f"{run_dir} must be a directory that can be written, it is not: {error.strerror}; name another"
            ) from error


def _new(jobs: "list[Job]", entries: "list[Entry]") -> "dict[str, Job]":
    """Those that sweep.json does not know, by their directories' names."""
    known = {entry.run_dir for entry in entries}
    named = {Path(job.config.run_dir or "").name: job for job in jobs}
    return {name: job for name, job in named.items() if name not in known}


def _check(analysis: dict[str, Any], entries: "list[Entry]", sweep_dir: Path, new: "Mapping[str, Config]") -> None:
    """ConfigError unless every arm is one that some job has, and arms that differ in order do so alone."""
    typed = {override for entry in entries for override in entry.overrides}
    for arm in (analysis["baseline"], analysis["contrast"]):
        if arm is not None and arm not in typed:
            raise ConfigError(
                f"analysis must name arms that the sweep has, got {arm} where no job has it; "
                "name another baseline or contrast, as `analysis.contrast='interleave=tijdeman'`, or add the arm"
            )
    if analysis["differs_in"] == "order":
        _check_order(entries, sweep_dir, new)


def _check_order(entries: "list[Entry]", sweep_dir: Path, new: "Mapping[str, Config]") -> None:
    """Of the seeds that get new jobs."""
    from dflash_exp.order_alone import Arm, check_order_alone
    from dflash_exp.submitted import frozen_config

    names = [entry.run_dir for entry in entries]
    arms = [Arm(name, new[name] if name in new else frozen_config(sweep_dir / name)) for name in names]
    seeds = {config.seed for config in new.values()}
    try:
        said = check_order_alone([arm for arm in arms if arm.config.seed in seeds])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if said is not None:
        print(f"dflash-exp: {said}", file=sys.stderr)
