"""Composition root: build each part, hand it its neighbours, run the line.

In: a checked `Config`. Out: an exit code and a run directory. `run` is the whole of a training run, begun or resumed:
the plan comes from `planning.py`, models and stages from `building.py`, what is done between two steps from
`between_steps.py`.
"""

import faulthandler
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_exp.between_steps import BetweenSteps, Counters, Hands, Schedule
from dflash_exp.building import Built, build, counters_of, greedy_decoding, hashes_of_inputs, restore, snapshot
from dflash_exp.checkpoint import CheckpointWriter, folder_name, newest_whole
from dflash_exp.config import Config, plain, run_directory
from dflash_exp.console import LastingConsole
from dflash_exp.durable import remove_unfinished
from dflash_exp.export import find_drafter
from dflash_exp.mirrors import Mirrors, run_labels
from dflash_exp.pipeline.line import Lockstep, run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import AfterStep, use_threads
from dflash_exp.plan.interleave import option_name
from dflash_exp.planning import Planned, plan_document, plan_run, write_plan
from dflash_exp.run_directory import (
    begun,
    check_same_inputs,
    check_same_run,
    create,
    environment,
    finished,
    free_file,
    locked,
    note_session,
    place,
    write_json,
)
from dflash_exp.scoring import score, store_prompts
from dflash_exp.stop import Stopped, StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_summary
from dflash_exp.telemetry.metrics import Metrics
from dflash_exp.telemetry.progress import ProgressLine
from dflash_exp.telemetry.sinks import JsonlSink, discard_after
from dflash_exp.telemetry.trace import Trace

DONE, STOPPED = 0, 75


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

    def write_plan(self, folder: Path) -> None:
        """The first epoch's plan with its order and picture, into an empty folder."""
        order = self.planned.planner.epoch(0).order
        write_plan(folder, order, plan_document(self.config, self.planned))


def run(config: Config, overrides: list[str], stop: StopSignals) -> int:
    """Train, save, decode, sum up; the same command goes on where it stopped. Returns 0, or 75 when stopped on request;
    a failure raises, after result.json says so. `stop` is entered, by whoever runs what follows this run."""
    console = LastingConsole()
    run_dir = place(run_directory(config), force=config.force)
    if run_dir != run_directory(config):
        console.say(f"{run_directory(config)} is taken: nothing there is touched")
    with ExitStack() as until_end:
        try:
            planned = plan_run(config)
            prompts = store_prompts(config.data, config.prompts.limit) if config.evaluate else []
            until_end.enter_context(locked(run_dir, console.say))
            if finished(run_dir):
                console.say(f"{run_dir} is finished: nothing to do (force=true trains anew)")
                return DONE
            session = open_session(config, overrides, planned, run_dir, console)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        session.console.say(opening_line(session))
        return finish(session, prompts, stop)


def open_session(
    config: Config, overrides: list[str], planned: Planned, run_dir: Path, console: LastingConsole
) -> Session:
    """Begin the run, or go back to the newest checkpoint that is whole. Raises ValueError for what does not fit."""
    document = plan_document(config, planned)
    folder, counters, metrics_bytes = None, Counters(), 0
    if begun(run_dir):
        check_same_run(run_dir, plain(config), document)
        remove_unfinished(run_dir / "checkpoints")
        folder = newest_whole(run_dir, console.say)
    if folder is not None:
        counters, metrics_bytes = counters_of(folder)
    built = build(config, planned, counters.step, console.say)
    inputs = hashes_of_inputs(config, planned, built)
    if begun(run_dir):
        check_same_inputs(run_dir, inputs)
    if folder is not None:
        restore(built, folder)
    where = environment(asdict(config.seeds), asdict(config.pipeline.threads))
    mirrors = Mirrors(config, run_dir, run_labels(config, run_dir, document, where), console.say)
    if not begun(run_dir):
        create(run_dir, plain(config), overrides, document, inputs)
    n_discarded = discard_after(run_dir / "metrics.jsonl", metrics_bytes)
    restarts = note_session(run_dir, where)
    if restarts:
        put_aside = f", {n_discarded} later records put aside" if n_discarded else ""
        console.say(f"{run_dir} goes on after step {counters.step} of {len(planned.settings)}{put_aside}")
    return Session(config, run_dir, planned, built, counters, restarts, mirrors, console)


def finish(session: Session, prompts: list[Tensor], stop: StopSignals) -> int:
    """Train and decode to the end, and leave result.json whatever happens."""
    started_s = time.monotonic()
    config, run_dir = session.config, session.run_dir
    result: dict[str, Any] = {"status": "failed", "restarts": session.restarts}
    evaluation, ended_at_once = None, False
    try:
        train(session, stop)
        if config.evaluate:
            evaluation = evaluate(session, prompts, stop)
            write_json(run_dir / "evaluation.json", evaluation)
            session.mirrors.log_prompts(evaluation)
        session.mirrors.log_plan(session.write_plan)
        result["status"] = "finished"
    except Stopped:
        result["status"] = "stopped"
        saved = ", saved" if session.counters.step else ""
        session.console.say(f"stopped after step {session.counters.step}{saved}: the same command goes on")
        return STOPPED
    except KeyboardInterrupt:
        ended_at_once = True  # and waits for no mirror
        result["status"] = "stopped"
        raise
    except BaseException as error:
        result["error"] = described(error)
        raise
    finally:
        result |= summed_up(session)
        write_json(run_dir / "result.json", result)
        if not ended_at_once:
            drafter = find_drafter(run_dir, None) if result["status"] == "finished" else None
            session.mirrors.close(result["status"], drafter, result.get("error"))
    print_summary(session.console, run_dir, result, evaluation, time.monotonic() - started_s)
    return DONE


def described(error: BaseException) -> str:
    """An error with its notes, which name the batch."""
    return "; ".join([f"{type(error).__name__}: {error}", *vars(error).get("__notes__", [])])


def train(session: Session, stop: StopSignals) -> None:
    """The line, and between its steps probe, record, display and checkpoint. Raises Stopped when asked to."""
    config, built, counters = session.config, session.built, session.counters
    n_steps = len(session.planned.settings)
    if counters.step == 0 and config.probe.every_steps and stop.requested is None:
        counters.first_probe = counters.probe = first_measure(session)
    if stop.requested is not None:  # before the first step of this session: nothing is new
        raise Stopped
    epoch_steps = [part.n_steps for part in session.planned.epochs]
    with (
        JsonlSink(session.run_dir / "metrics.jsonl") as sink,
        closing(trace_of(session)) as trace,
        ProgressLine(session.console, epoch_steps, time.monotonic, counters.step) as progress,
        closing(CheckpointWriter(session.run_dir, config.checkpoint, progress.note)) as writer,
    ):

        def save(counters: Counters) -> None:
            try:
                metrics_bytes = sink.n_bytes()
            except OSError as error:
                writer.note_failure(counters.step, error)
            else:
                writer.save(snapshot(built, counters, metrics_bytes))

        hands = Hands(
            probe=built.measure,
            sinks=[sink, *session.mirrors.sinks()],
            show=progress.update,
            save=save,
            trace=trace,
            asked_to_stop=lambda: stop.requested is not None,
        )
        schedule = Schedule(epoch_steps, config.probe.every_steps, config.checkpoint.every_steps)
        run_line(session, BetweenSteps(counters, schedule, hands))
        writer.finish()
    if counters.step < n_steps:
        raise Stopped


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
    return Trace(first, last, free_file(session.run_dir / "logs" / f"trace-steps-{first}-{last}.json"))


def run_line(session: Session, after_step: AfterStep) -> None:
    """The configured line over the steps that are left."""
    pipeline, steps = session.config.pipeline, session.planned.steps(session.counters.step)
    if isinstance(pipeline, Lockstep):
        run_lockstep(steps, session.built.stages, pipeline.threads, after_step)
        return
    workers, logs = session.config.topology.target_workers, session.run_dir / "logs"
    run_overlapped(steps, session.built.stages, pipeline, workers, after_step, stack_dump(logs, session.console.say))


def stack_dump(logs: Path, say: Callable[[str], None]) -> Callable[[str], None]:
    """What to do about a stall: write down where every thread stands."""

    def dump(shown: str) -> None:
        path = free_file(logs / "stall.txt")
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{shown}\n\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        say(f"stalled ({shown}): the stacks of all threads are in {path}")

    return dump


def evaluate(session: Session, prompts: list[Tensor], stop: StopSignals) -> dict[str, object]:
    """Decode the prompts with the drafter as it is."""
    target = session.built.target
    decoding = greedy_decoding(session.config, target)
    name = folder_name(session.counters.step)

    def stop_if_asked() -> None:
        if stop.requested is not None:
            raise Stopped

    return score(target, session.built.drafter, prompts, decoding, name, session.console, stop_if_asked)


def summed_up(session: Session) -> dict[str, Any]:
    """Fields of result.json that hold however the run ended."""
    counters = session.counters
    return {
        "steps": counters.step,
        "epochs": session.planned.epochs_begun(counters.step),
        "tokens": counters.tokens,
        "skipped_steps": counters.skipped_steps,
        "train_s": round(counters.trained_s, 1),
        "first_probe": counters.first_probe,
        "final_probe": counters.probe,
        "final": counters.final,
        **session.built.trained.hashes(),
        "init_sha256": session.built.init_sha256,
        "probe_sha256": session.built.probe.sha256(),
    }


def opening_line(session: Session) -> str:
    """What is about to happen, and what was cut or left out."""
    built, used = session.built, session.planned.conversations
    odd = "".join(f", {n} {what}" for n, what in ((used.n_truncated, "truncated"), (used.n_skipped, "skipped")) if n)
    n_parameters = sum(p.numel() for p in built.drafter.parameters())
    return (
        f"{session.run_dir}: {len(session.planned.settings)} steps over {len(used.rows)} conversations{odd}, "
        f"{option_name(session.config.interleave)}, drafter of {n_parameters / 1e6:.2f}M parameters, "
        f"on {built.target.model.device.type}"
    )
