"""Composition root: build each part, hand it its neighbours, run the line.

In: a checked `Config`. Out: an exit code and a run directory. `run` is the whole of a training run, begun or resumed:
the plan comes from `planning.py`, models and stages from `building.py`, a session from `session.py`, which
`training.py` runs. Every rank goes this way; the first one alone decides and writes.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_exp.between_steps import over_ranks
from dflash_exp.building import greedy_decoding
from dflash_exp.checkpoint import folder_name
from dflash_exp.config import Config, defaults, plain, run_directory
from dflash_exp.console import LastingConsole
from dflash_exp.distributed import check_memory, check_topology, rank_devices
from dflash_exp.export import find_drafter
from dflash_exp.launch.children import DONE, STOPPED
from dflash_exp.pipeline.line import Overlapped
from dflash_exp.plan.interleave import option_name
from dflash_exp.planning import Planned, plan_document, plan_run
from dflash_exp.pricing import trained_mfu
from dflash_exp.published import drafter_there
from dflash_exp.ranks import Alone, Ranks, lead, share_out, together
from dflash_exp.run_directory import begun, check_same_run, finished, free_file, locked, place, write_json
from dflash_exp.scoring import examined_data, score, store_prompts
from dflash_exp.session import Opening, Session, open_session
from dflash_exp.stop import Stopped, StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_summary
from dflash_exp.training import train

STOPPED_AT_ONCE = "stopped before anything was begun: the same command goes on"
ALONE = Alone()


def run(config: Config, overrides: list[str], stop: StopSignals, ranks: Ranks = ALONE) -> int:
    """Train, save, decode, sum up; the same command goes on where it stopped. Returns 0, or 75 when stopped on request;
    a failure raises, after result.json says so. `stop` is entered, by whoever runs what follows this run."""
    console = LastingConsole(quiet=ranks.rank > 0)
    with ExitStack() as until_end:
        try:
            planned, prompts = together(ranks, lambda: planned_and_prompts(config))
            run_dir = Path(lead(ranks, lambda: placed(config, console)))
            if any(ranks.exchange(stop.requested is not None)):
                console.say(STOPPED_AT_ONCE)
                return STOPPED
            if not lead(ranks, lambda: held(run_dir, config, planned, until_end, console)):
                return DONE
            document = together(ranks, lambda: affordable_plan(config, planned, ranks.rank))
            opening = Opening(config, overrides, planned, document, run_dir)
            session = open_session(opening, ranks, stop, console)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        session.console.say(opening_line(session))
        return finish(session, prompts, stop)


def planned_and_prompts(config: Config) -> tuple[Planned, list[Tensor]]:
    """What must fit before anything is touched. Raises ValueError."""
    check_topology(config.topology, config.batches_per_step, overlapped=isinstance(config.pipeline, Overlapped))
    if config.drafter.init_from is not None:
        drafter_there(Path(config.drafter.init_from))
    return plan_run(config), store_prompts(config.data, config.prompts.limit) if config.evaluate else []


def affordable_plan(config: Config, planned: Planned, rank: int) -> dict[str, Any]:
    """plan.json. Raises ValueError where it needs devices or memory that are not there."""
    document = plan_document(config, planned)
    devices, memory = rank_devices(config.topology, config.target.layer_split, rank), document["memory_bytes"]
    if memory is not None:
        check_memory(config.topology, devices, memory["largest_device"])
    return document


def placed(config: Config, console: LastingConsole) -> str:
    """Where the run is to be."""
    wanted = run_directory(config)
    run_dir = place(wanted, force=config.force)
    if run_dir != wanted:
        console.say(f"{wanted} is taken: nothing there is touched")
    return str(run_dir)


def held(run_dir: Path, config: Config, planned: Planned, until_end: ExitStack, console: LastingConsole) -> bool:
    """Keep other runs out of the directory; False where nothing is left to do. Raises ValueError where another run
    lies there."""
    until_end.enter_context(locked(run_dir, console.say))
    if begun(run_dir):
        check_same_run(run_dir, plain(config), planned.hashes(), defaults(config))
    if finished(run_dir):
        console.say(f"{run_dir} is finished: nothing to do (force=true trains anew)")
        return False
    return True


def finish(session: Session, prompts: list[Tensor], stop: StopSignals) -> int:
    """Train and decode to the end, and leave result.json whatever happens."""
    started_s, mirrors = time.monotonic(), session.mirrors
    try:
        times = train(session, stop)
        evaluation = evaluate(session, prompts, stop) if session.config.evaluate else None
        mirrors.log_plan(session.run_dir, session.write_plan)
        cache = session.ranks.exchange(cache_counts(session))
        spent = {"time": over_ranks(times), "time_by_rank": times, "mfu": mfu_of(session, times)}
        result = leave(session, {"status": "finished", **spent, "target_cache_by_rank": cache})
    except Stopped:
        with if_unwritten_said(session):
            leave(session, {"status": "stopped"})
        mirrors.close("stopped", None, None)
        saved = ", saved" if session.counters.step else ""
        session.console.say(f"stopped after step {session.counters.step}{saved}: the same command goes on")
        return STOPPED
    except KeyboardInterrupt:  # at once: waits for no mirror
        with if_unwritten_said(session):
            leave(session, {"status": "stopped"})
        raise
    except BaseException as error:
        session.ranks.fail(described(error))
        with if_unwritten_said(session):
            leave(session, {"status": "failed", "error": described(error)})
        mirrors.close("failed", None, described(error))
        raise
    mirrors.log_jumps(result["dynamics"]["jumps"])
    mirrors.close("finished", find_drafter(session.run_dir, None) if session.ranks.rank == 0 else None, None)
    print_summary(session.console, session.run_dir, result, evaluation, time.monotonic() - started_s)
    return DONE


def leave(session: Session, ended: dict[str, Any]) -> dict[str, Any]:
    """What the first rank writes at the end of a session, whatever its end: the content of result.json."""
    result = ended | {"restarts": session.restarts} | summed_up(session)
    if session.ranks.rank == 0:
        write_json(session.run_dir / "result.json", result)
    return result


def cache_counts(session: Session) -> dict[str, int] | None:
    """Forwards that this rank's target found, kept and had no room for since it began; None without a cache."""
    cache = session.built.cache
    return None if cache is None else asdict(cache.counts())


def mfu_of(session: Session, times: list[dict[str, Any]]) -> float | None:
    """Of this session's steps on CUDA, all devices together; None where it is not known."""
    devices = session.built.devices
    if devices.drafter.type != "cuda":
        return None
    done, planned = session.counters.step, session.planned
    steps = range(done - int(times[0]["n_steps"]), done)
    device_s = sum(spent["steps_s"] for spent in times) * len(devices.distinct)
    name = torch.cuda.get_device_name(devices.drafter)
    return trained_mfu(session.config, (planned.planner, planned.epochs), steps, device_s, name)


@contextmanager
def if_unwritten_said(session: Session) -> Iterator[None]:
    """A result.json that cannot be written does not take the place of what ended the run."""
    try:
        yield
    except Exception as error:  # the run's edge: another error is on its way, or a stop
        session.console.say(f"result.json was not written ({described(error)})")


def described(error: BaseException) -> str:
    """An error with its notes, which name the batch."""
    return "; ".join([f"{type(error).__name__}: {error}", *vars(error).get("__notes__", [])])


def evaluate(session: Session, prompts: list[Tensor], stop: StopSignals) -> dict[str, Any]:
    """Decode the prompts with the drafter as it is, each on one rank; the first keeps what came of it. Raises
    Stopped."""
    target = session.built.target
    decoding = greedy_decoding(session.config, target)
    name = folder_name(session.counters.step)
    asked, among_ranks = lambda: stop.requested is not None, partial(share_out, session.ranks)
    evaluation = score(
        target, session.built.drafter, prompts, examined_data(session.config.data), decoding, name, session.console,
        asked, among_ranks,
    )  # fmt: skip
    if session.ranks.rank == 0:
        path = free_file(session.run_dir / "evaluation.json")
        write_json(path, evaluation)
        if path.name != "evaluation.json":
            session.console.say(f"evaluation.json was there before, this run's decoding is in {path}")
        session.mirrors.log_prompts(evaluation)
    return evaluation


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
        "dynamics": session.built.dynamics.as_json(),
        **session.built.trained.hashes(),
        "init_sha256": session.built.init_sha256,
        "probe_sha256": session.built.probe.sha256(),
    }


def opening_line(session: Session) -> str:
    """What is about to happen, and what was cut or left out."""
    built, used, topology = session.built, session.planned.conversations, session.config.topology
    odd = "".join(f", {n} {what}" for n, what in ((used.n_truncated, "truncated"), (used.n_skipped, "skipped")) if n)
    n_parameters = sum(p.numel() for p in built.drafter.parameters())
    device = built.target.model.device.type
    chosen = f" (topology auto: {'gpu1' if device == 'cuda' else 'cpu'})" if topology.name == "auto" else ""
    ranks = f", {session.ranks.n_ranks} ranks" if session.ranks.n_ranks > 1 else ""
    return (
        f"{session.run_dir}: {len(session.planned.settings)} steps over {len(used.rows)} conversations{odd}, "
        f"{option_name(session.config.interleave)}, drafter of {n_parameters / 1e6:.2f}M parameters, "
        f"on {device}{chosen}{ranks}{built.attention.shown()}"
    )
