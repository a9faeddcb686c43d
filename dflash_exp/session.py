"""One process's part of a run: begun, or gone back to the newest checkpoint that is whole.

In: a checked `Config`, its plan, the ranks. Out: a `Session`, ready to train. What is decided from files is decided by
the first rank, and what is written to the run directory is written by it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_exp.between_steps import Counters
from dflash_exp.building import Built, Outside, build, counters_of, hashes_of_inputs, restore
from dflash_exp.checkpoint import newest_whole
from dflash_exp.config import Config, plain
from dflash_exp.console import LastingConsole
from dflash_exp.distributed import whereabouts
from dflash_exp.durable import remove_unfinished
from dflash_exp.mirrors import NO_MIRRORS, Mirrors, open_mirrors, run_labels
from dflash_exp.planning import Planned, plan_document, write_plan
from dflash_exp.ranks import Ranks, lead, together
from dflash_exp.run_directory import (
    begun,
    check_same_inputs,
    create,
    environment,
    note_session,
    overrides_there,
)
from dflash_exp.stop import StopSignals
from dflash_exp.telemetry.sinks import check_holds, discard_after


@dataclass(frozen=True)
class Session:
    """One process's part of a run."""

    config: Config
    run_dir: Path
    planned: Planned
    built: Built
    counters: Counters
    restarts: int
    mirrors: Mirrors
    console: LastingConsole
    ranks: Ranks

    def write_plan(self, folder: Path) -> None:
        """The first epoch's plan with its order and picture, into an empty folder."""
        order = self.planned.planner.epoch(0).order
        write_plan(folder, order, plan_document(self.config, self.planned), None)


@dataclass(frozen=True)
class Opening:
    """What a session is opened with."""

    config: Config
    overrides: list[str]
    planned: Planned
    document: dict[str, object]
    """plan.json."""
    run_dir: Path


def open_session(opening: Opening, ranks: Ranks, stop: StopSignals, console: LastingConsole) -> Session:
    """Begin the run, or go back to the newest checkpoint. Raises ValueError, on all ranks, for what does not fit."""
    config, planned, run_dir = opening.config, opening.planned, opening.run_dir
    folder = lead(ranks, lambda: newest(opening, console))
    counters, metrics_bytes = (Counters(), 0) if folder is None else counters_of(Path(folder))
    outside = Outside(ranks, console.say, lambda: stop.requested is not None)
    built = together(ranks, lambda: built_as_before(opening, counters.step, outside))
    if folder is not None:
        restore(built, Path(folder))
    where = environment(asdict(config.seeds), asdict(config.pipeline.threads))
    where["ranks"] = ranks.exchange(whereabouts(config.topology, ranks.rank, str(built.target.model.device)))
    where["attention"] = asdict(built.attention)
    mirrors = together(ranks, lambda: mirrors_of(opening, where, console) if ranks.rank == 0 else NO_MIRRORS)
    first = lead(ranks, lambda: begin(opening, built, where, metrics_bytes))
    if first["restarts"]:
        aside = f", {first['put_aside']} later records put aside" if first["put_aside"] else ""
        console.say(f"{run_dir} goes on after step {counters.step} of {len(planned.settings)}{aside}")
    if ranks.rank > 0:
        console.write_to(run_dir / "logs" / f"rank-{ranks.rank}.log")
    return Session(config, run_dir, planned, built, counters, first["restarts"], mirrors, console, ranks)


def newest(opening: Opening, console: LastingConsole) -> str | None:
    """The checkpoint to go on from, None where the run begins. Raises ValueError where its records are gone."""
    run_dir = opening.run_dir
    if not begun(run_dir):
        return None
    remove_unfinished(run_dir)
    remove_unfinished(run_dir / "checkpoints")
    folder = newest_whole(run_dir, console.say)
    if folder is None:
        return None
    check_holds(run_dir / "metrics.jsonl", counters_of(folder)[1], folder.name)
    return str(folder)


def built_as_before(opening: Opening, first_step: int, outside: Outside) -> Built:
    """Models and stages. Raises ValueError where a run that was begun had other tokens or weights."""
    built = build(opening.config, opening.planned, first_step, outside)
    if begun(opening.run_dir):
        check_same_inputs(opening.run_dir, hashes_of_inputs(opening.config, opening.planned, built))
    return built


def mirrors_of(opening: Opening, where: dict[str, Any], console: LastingConsole) -> Mirrors:
    """The mirrors that the configuration asks for. Raises ValueError where one is not installed."""
    config, run_dir = opening.config, opening.run_dir
    typed = overrides_there(run_dir) if begun(run_dir) else opening.overrides
    return open_mirrors(config, run_dir, run_labels(config, run_dir, opening.document, where, typed), console.say)


def begin(opening: Opening, built: Built, where: dict[str, Any], metrics_bytes: int) -> dict[str, int]:
    """Write what is known before the first step; records behind the checkpoint are put aside."""
    config, run_dir = opening.config, opening.run_dir
    if not begun(run_dir):
        inputs = hashes_of_inputs(config, opening.planned, built)
        create(run_dir, plain(config), opening.overrides, opening.document, inputs)
    put_aside = discard_after(run_dir / "metrics.jsonl", metrics_bytes)
    return {"put_aside": put_aside, "restarts": note_session(run_dir, where)}
