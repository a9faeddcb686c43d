"""The verb plan."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.launch.children import DONE
from dflash_exp.verbs.in_turn import in_turn
from dflash_exp.verbs.verb import Verb

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def plan(arguments: list[str]) -> int:
    """Show an epoch before anybody pays for it."""
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    if not jobs[0].in_sweep:
        return _show(jobs[0])
    jobs = _in_a_new_folder(sorted(jobs, key=lambda job: job.index))
    code = in_turn(jobs, _show, lambda: False)
    _print_side_by_side(jobs)
    return code


def _show(job: "Job") -> int:
    from dflash_exp.planning import show_plan

    run, losses = job.config.plan.loss_from, None
    if run is not None:
        from dflash_exp.sequence_losses import losses_for

        losses = losses_for(job.config, Path(run))
    return show_plan(job.config, job.speed_from, losses)


def _in_a_new_folder(jobs: "list[Job]") -> "list[Job]":
    """A sweep's plans lie in `<plan.out>/<index>-<identity>`, as its runs do in the sweep's directory; where `plan.out`
    is taken, in the folder beside it, so that all that lies there is of this sweep."""
    from dflash_exp.run_directory import free_directory

    out = free_directory(Path(jobs[0].config.plan.out))
    owns = [str(out / Path(job.config.run_dir or "").name) for job in jobs]
    plans = [replace(job.config.plan, out=own) for job, own in zip(jobs, owns, strict=True)]
    return [replace(job, config=replace(job.config, plan=plan)) for job, plan in zip(jobs, plans, strict=True)]


def _print_side_by_side(jobs: "list[Job]") -> None:
    """One table of the plans that could be made, each called by those of its overrides that not all of them have."""
    from dflash_exp.compose import told_apart
    from dflash_exp.console import LastingConsole
    from dflash_exp.summary import print_plans

    names = told_apart([job.overrides for job in jobs])
    made = [(name, Path(job.config.plan.out) / "plan.json") for name, job in zip(names, jobs, strict=True)]
    print_plans(
        LastingConsole(), [(name, json.loads(path.read_text("utf-8"))) for name, path in made if path.is_file()]
    )


VERB = Verb(
    "plan",
    "OVERRIDES",
    "show an epoch before anybody pays for it: table, plan.json, plan.png, order.npy",
    ("dflash-exp plan interleave=shuffle", "dflash-exp plan -m 'interleave=glob(*)' plan.counts=[2120,8009,19581]"),
    plan,
)
