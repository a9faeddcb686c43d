"""The runs of a group as W&B has them, through its public API: configuration, summary, every record.

In: an entity, a project, a group. Out: `MirroredRun`s, in the order in which they were begun. Records are read whole,
not sampled, and are what the mirror sent (`mirror.plotted`): steps that a resumed run sent twice are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_exp.telemetry.wandb_account import WandbTrouble, signed_in
from dflash_exp.telemetry.wandb_client import STEP

TIMEOUT_S = 30
"""For each answer of the server, tried again within it."""


@dataclass(frozen=True)
class MirroredRun:
    """One run."""

    id: str
    state: str
    """W&B's word: finished, failed, crashed, killed, running, ..."""
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    records: list[dict[str, float]]
    """Of every step, ascending; `step` is the run's own."""


def read_group(entity: str, project: str, group: str, timeout_s: int = TIMEOUT_S) -> list[MirroredRun]:
    """All runs of the group, whatever they are; raises WandbTrouble."""
    with signed_in():
        import wandb

        api = wandb.Api(overrides={"entity": entity, "project": project}, timeout=timeout_s)
        found = api.runs(f"{entity}/{project}", filters={"group": group}, order="+created_at", lazy=False)
        runs = [
            MirroredRun(run.id, run.state, run.config, run.summary_metrics, records_of(run.scan_history()))
            for run in found
        ]
    if not runs:
        raise WandbTrouble(f"no run of a group {group} in {entity}/{project}")
    return runs


def records_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The numbers of each step: of rows of one step the later one's stand, and rows of no step, media and the client's
    own fields (`_runtime`) are left out."""
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.get(STEP) is not None:
            shown = {name: value for name, value in row.items() if name[0] != "_" and isinstance(value, int | float)}
            by_step.setdefault(int(shown.pop(STEP)), {}).update(shown)
    return [{"step": step, **by_step[step]} for step in sorted(by_step)]
