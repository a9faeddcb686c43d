"""A group of W&B -> the runs of a comparison, without the files: `wandb:ENTITY/PROJECT/GROUP`.

In: the group's address. Out: `Gathered`, as a sweep's directory gives it, from what `mirrors.py` and the sinks have
told W&B: the same records, hashes, plans, what was typed, what the sweep is judged by. What W&B lacks is a remark.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash_exp.compare.cautions import SAME
from dflash_exp.compare.runs import BUCKETS, Run, column
from dflash_exp.config import leaves
from dflash_exp.gathered import IDENTIFYING, Gathered
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.mirror import BESIDE
from dflash_exp.telemetry.wandb_account import WandbTrouble
from dflash_exp.telemetry.wandb_runs import MirroredRun, read_group

PREFIX = "wandb:"
AT_WORK = ("running", "pending", "preempting")
ENDED = {"finished": "finished", "failed": "failed"}
"""What W&B calls a run's end, of one that has left no result; any other is a stop."""
NEVER_THERE = "jobs that have not begun, losses with nothing learned"


def gather_group(address: str) -> Gathered:
    """The runs of a group; raises ConfigError where W&B does not give them."""
    entity, project, group = parts_of(address)
    try:
        found = read_group(entity, project, group)
    except WandbTrouble as error:
        raise ConfigError(f"{address} must be a group whose runs W&B shows, got {error}") from error
    place = {"entity": entity, "project": project, "group": group}
    mirrored = [run for run in found if leaves(dict(run.config)).keys() >= IDENTIFYING]
    if not mirrored:
        raise ConfigError(f"{address} must hold runs of this framework, got {len(found)} others; name another group")
    analysis, remarks = analysis_of(mirrored)
    runs = sorted((run_of(run, place) for run in mirrored), key=lambda run: _by_number(run.name))
    return Gathered(address, group, analysis, runs, [], [*missing(address, runs), *remarks])


def parts_of(address: str) -> list[str]:
    """Entity, project, group; raises ConfigError."""
    parts = address.removeprefix(PREFIX).split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"a group of W&B must be named wandb:ENTITY/PROJECT/GROUP, got {address}; name all three")
    return parts


def run_of(mirrored: MirroredRun, place: Mapping[str, str]) -> Run:
    """As `read_run` would have it; `place`: where in W&B it was found."""
    held, result = mirrored.config, mirrored.summary.get("result") or {}
    config = leaves({key: value for key, value in held.items() if key not in BESIDE})
    columns, buckets = columns_of(mirrored.records)
    return Run(
        name=Path(held["run_dir"]).name if held.get("run_dir") else mirrored.id,
        overrides=tuple(held.get("overrides") or ()),
        config=config | {f"telemetry.wandb.{key}": value for key, value in place.items()},
        word=word_of(mirrored.state, result),
        error=result.get("error"),
        columns=columns,
        buckets=buckets,
        result=result,
        evaluation=mirrored.summary.get("evaluation") or {},
        plan=held.get("plan_figures") or {},
        environment={key: held[key] for key in ("command", "git", "packages") if held.get(key) is not None},
    )


def word_of(state: str, result: Mapping[str, Any]) -> str:
    """What the run's files would say: the result's word, unless it is at work again."""
    if state in AT_WORK:
        return "running"
    return result.get("status") or ENDED.get(state, "stopped")


def columns_of(records: Sequence[Mapping[str, float]]) -> tuple[dict[str, np.ndarray], tuple[tuple[int, ...], ...]]:
    """Every field, and each step's bucket; nothing of a step of several batches, which W&B is not told."""
    fields = {field for record in records for field in record} - {BUCKETS}
    columns = {field: column([record.get(field) for record in records]) for field in fields}
    return columns, tuple((int(record[BUCKETS]),) if BUCKETS in record else () for record in records)


def analysis_of(runs: Sequence[MirroredRun]) -> tuple[dict[str, Any] | None, list[str]]:
    """What all runs that say so are judged by, and what keeps it from being known."""
    told = [run.config["analysis"] for run in runs if run.config.get("analysis")]
    if not told:
        return None, ["no run says in W&B what its sweep is judged by: this is an exploratory look"]
    if any(each != told[0] for each in told):
        return None, ["runs of the group were frozen to be judged in different ways: this is an exploratory look"]
    return told[0], []


def missing(address: str, runs: Sequence[Run]) -> list[str]:
    """What was read, and what is not known of it."""
    lacking = [NEVER_THERE]
    if any(step == () for run in runs for step in run.buckets):
        lacking.append("which buckets a step of several batches is of, so orders")
    without = [run.name for run in runs if run.word == "finished" and not SAME.keys() <= run.result.keys()]
    if without:
        lacking.append(f"hashes, tokens and decoding of {len(without)} of {len(runs)} runs, mirrored by older code")
    return [f"read from {address} and not from files, so not known: {'; '.join(lacking)}"]


def _by_number(name: str) -> tuple[int, str]:
    """2-x before 10-x, as in a sweep's directory."""
    first = name.partition("-")[0]
    return (int(first) if first.isdecimal() else -1, name)
