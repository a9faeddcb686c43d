"""The line of a session, and between its steps probe, record, display and checkpoint.

In: a `Session`. Out: a drafter that is trained, or `Stopped`. Every rank runs the line over its share of each step; the
first one alone records, shows and saves.
"""

import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from dflash_exp.between_steps import BetweenSteps, Counters, Hands, Schedule
from dflash_exp.building import dealt_steps, snapshot
from dflash_exp.checkpoint import CheckpointWriter
from dflash_exp.pipeline.line import Lockstep, run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import AfterStep, use_threads
from dflash_exp.run_directory import free_file
from dflash_exp.session import Session
from dflash_exp.stop import Stopped, StopSignals
from dflash_exp.telemetry.metrics import Metrics
from dflash_exp.telemetry.progress import ProgressLine
from dflash_exp.telemetry.sinks import JsonlSink
from dflash_exp.telemetry.trace import Trace


def train(session: Session, stop: StopSignals) -> list[dict[str, Any]]:
    """All steps that are left: where their time went, rank by rank. Raises Stopped when a rank is asked to stop."""
    config, counters = session.config, session.counters
    stop_if_asked(session, stop)
    if counters.step == 0 and config.probe.every_steps:
        counters.first_probe = counters.probe = first_measure(session)
        if counters.probe.get("probe/loss") is not None:
            session.built.dynamics.probed(0, counters.probe["probe/loss"])
        stop_if_asked(session, stop)
    epoch_steps = [part.n_steps for part in session.planned.epochs]
    schedule = Schedule(epoch_steps, config.probe.every_steps, config.checkpoint.every_steps)
    with first_rank_hands(session, epoch_steps) if session.ranks.rank == 0 else other_rank_hands(session) as hands:
        between = BetweenSteps(counters, schedule, hands, session.built.dynamics)
        run_line(session, between)
    if counters.step < len(session.planned.settings):
        raise Stopped
    return session.ranks.exchange(between.spent.as_json())


def stop_if_asked(session: Session, stop: StopSignals) -> None:
    """Before the first step of this session nothing is new: there is nothing to save."""
    if any(session.ranks.exchange(stop.requested is not None)):
        raise Stopped


@contextmanager
def first_rank_hands(session: Session, epoch_steps: list[int]) -> Iterator[Hands]:
    """Records, display, traces and checkpoints."""
    config, built, ranks = session.config, session.built, session.ranks
    with (
        JsonlSink(session.run_dir / "metrics.jsonl") as sink,
        closing(trace_of(session)) as trace,
        ProgressLine(session.console, epoch_steps, time.monotonic, session.counters.step) as progress,
        closing(CheckpointWriter(session.run_dir, config.checkpoint, progress.note)) as writer,
    ):

        def save(counters: Counters) -> None:
            built.trained.gather(ranks.exchange)
            try:
                metrics_bytes = sink.n_bytes()
            except OSError as error:
                writer.note_failure(counters.step, error)
            else:
                writer.save(snapshot(built, counters, metrics_bytes))

        yield Hands(
            probe=built.measure,
            probe_loss=built.probe_loss,
            probe_gradients=built.probe_gradients,
            sinks=[sink, *session.mirrors.sinks()],
            show=progress.update,
            save=save,
            trace=trace,
            asked_to_stop=lambda: built.trainer.stop_agreed,
        )
        writer.finish()


@contextmanager
def other_rank_hands(session: Session) -> Iterator[Hands]:
    """What takes all ranks: measuring, and telling what was trained."""
    built = session.built
    yield Hands(
        probe=built.measure,
        probe_loss=built.probe_loss,
        probe_gradients=built.probe_gradients,
        sinks=[],
        show=lambda *_: None,
        save=lambda _: built.trained.gather(session.ranks.exchange),
        trace=lambda _: None,
        asked_to_stop=lambda: built.trainer.stop_agreed,
    )


def first_measure(session: Session) -> Metrics:
    """Before the first step, in the main thread, at the drafter's threads: what it keeps must be what a resumed run,
    which measures in the drafter's thread, would make anew."""
    default = torch.get_num_threads()
    use_threads(session.config.pipeline.threads.drafter or default)
    try:
        return session.built.measure()
    finally:
        use_threads(default)


def trace_of(session: Session) -> Trace:
    """The trace that `profile.steps` asks for, perhaps of no step."""
    first, last = session.config.profile.steps or (-1, -1)
    path = free_file(session.run_dir / "logs" / f"trace-steps-{first}-{last}.json")
    return Trace(first, last, path, session.console.say)


def run_line(session: Session, after_step: AfterStep) -> None:
    """The configured line over this rank's share of the steps that are left."""
    config, built = session.config, session.built
    steps = dealt_steps(config, session.planned, built, session.counters.step, session.ranks)
    if isinstance(config.pipeline, Lockstep):
        run_lockstep(steps, built.stages, config.pipeline.threads, after_step)
        return
    path = session.run_dir / "logs" / ("stall.txt" if session.ranks.rank == 0 else f"stall-{session.ranks.rank}.txt")
    run_overlapped(steps, built.stages, config.pipeline, after_step, stack_dump(path, session.console.say))


def stack_dump(wanted: Path, say: Callable[[str], None]) -> Callable[[str], None]:
    """What to do about a stall: write down where every thread stands, in `wanted` or beside it."""

    def dump(shown: str) -> None:
        path = free_file(wanted)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{shown}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            say(f"stalled ({shown}): the stacks of all threads could not be written to {path} ({error})")
        else:
            say(f"stalled ({shown}): the stacks of all threads are in {path}")

    return dump
