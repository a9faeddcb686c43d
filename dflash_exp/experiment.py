"""Composition root: build each part, hand it its neighbours, run the line.

In: a checked `Config`. Out: an exit code and a run directory. `run` is the whole of a training run, begun or resumed:
the plan comes from `planning.py`, models and stages from `building.py`, a session from `session.py`, which
`training.py` runs. Every rank goes this way; the first one alone decides and writes.
"""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dflash_exp.building import greedy_decoding
from dflash_exp.checkpoint import folder_name
from dflash_exp.config import Config, run_directory
from dflash_exp.console import LastingConsole
from dflash_exp.distributed import check_memory, check_topology, rank_devices
from dflash_exp.export import find_drafter
from dflash_exp.pipeline.line import Overlapped
from dflash_exp.plan.interleave import option_name
from dflash_exp.planning import Planned, plan_document, plan_run
from dflash_exp.ranks import Alone, Ranks, lead, share_out, together
from dflash_exp.run_directory import finished, locked, place, write_json
from dflash_exp.scoring import score, store_prompts
from dflash_exp.session import Opening, Session, open_session
from dflash_exp.stop import Stopped, StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_summary
from dflash_exp.training import train

DONE, STOPPED = 0, 75
ALONE = Alone()


def run(config: Config, overrides: list[str], stop: StopSignals, ranks: Ranks = ALONE) -> int:
    """Train, save, decode, sum up; the same command goes on where it stopped. Returns 0, or 75 when stopped on request;
    a failure raises, after result.json says so. `stop` is entered, by whoever runs what follows this run."""
    console = LastingConsole(quiet=ranks.rank > 0)
    with ExitStack() as until_end:
        try:
            planned, prompts = together(ranks, lambda: planned_and_prompts(config))
            run_dir = Path(lead(ranks, lambda: placed(config, console)))
            if not lead(ranks, lambda: held(run_dir, until_end, console)):
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
    return plan_run(config), store_prompts(config.data, config.prompts.limit) if config.evaluate else []


def affordable_plan(config: Config, planned: Planned, rank: int) -> dict[str, Any]:
    """plan.json. Raises ValueError where it needs devices or memory that are not there."""
    document = plan_document(config, planned)
    devices, memory = rank_devices(config.topology, rank), document["memory_bytes"]
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


def held(run_dir: Path, until_end: ExitStack, console: LastingConsole) -> bool:
    """Keep other runs out of the directory; False where nothing is left to do. Raises ValueError."""
    until_end.enter_context(locked(run_dir, console.say))
    if finished(run_dir):
        console.say(f"{run_dir} is finished: nothing to do (force=true trains anew)")
        return False
    return True


def finish(session: Session, prompts: list[Tensor], stop: StopSignals) -> int:
    """Train and decode to the end, and leave result.json whatever happens."""
    started_s = time.monotonic()
    result: dict[str, Any] = {"status": "failed", "restarts": session.restarts}
    evaluation, ended_at_once = None, False
    try:
        result["time_by_rank"] = train(session, stop)
        if session.config.evaluate:
            evaluation = evaluate(session, prompts, stop)
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
        session.ranks.fail(result["error"])
        raise
    finally:
        result |= summed_up(session)
        if session.ranks.rank == 0:
            leave(session, result, evaluation, ended_at_once)
    print_summary(session.console, session.run_dir, result, evaluation, time.monotonic() - started_s)
    return DONE


def leave(session: Session, result: dict[str, Any], evaluation: dict[str, Any] | None, ended_at_once: bool) -> None:
    """What the first rank writes at the end of a session, whatever its end."""
    run_dir, mirrors = session.run_dir, session.mirrors
    if evaluation is not None:
        write_json(run_dir / "evaluation.json", evaluation)
        mirrors.log_prompts(evaluation)
    if result["status"] == "finished":
        mirrors.log_plan(run_dir, session.write_plan)
    write_json(run_dir / "result.json", result)
    if not ended_at_once:
        drafter = find_drafter(run_dir, None) if result["status"] == "finished" else None
        mirrors.close(result["status"], drafter, result.get("error"))


def described(error: BaseException) -> str:
    """An error with its notes, which name the batch."""
    return "; ".join([f"{type(error).__name__}: {error}", *vars(error).get("__notes__", [])])


def evaluate(session: Session, prompts: list[Tensor], stop: StopSignals) -> dict[str, Any]:
    """Decode the prompts with the drafter as it is, each on one rank. Raises Stopped."""
    target = session.built.target
    decoding = greedy_decoding(session.config, target)
    name = folder_name(session.counters.step)
    asked, among_ranks = lambda: stop.requested is not None, partial(share_out, session.ranks)
    return score(target, session.built.drafter, prompts, decoding, name, session.console, asked, among_ranks)


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
    built, used, topology = session.built, session.planned.conversations, session.config.topology
    odd = "".join(f", {n} {what}" for n, what in ((used.n_truncated, "truncated"), (used.n_skipped, "skipped")) if n)
    n_parameters = sum(p.numel() for p in built.drafter.parameters())
    device = built.target.model.device.type
    chosen = f" (topology auto: {'gpu1' if device == 'cuda' else 'cpu'})" if topology.name == "auto" else ""
    ranks = f", {session.ranks.n_ranks} ranks" if session.ranks.n_ranks > 1 else ""
    return (
        f"{session.run_dir}: {len(session.planned.settings)} steps over {len(used.rows)} conversations{odd}, "
        f"{option_name(session.config.interleave)}, drafter of {n_parameters / 1e6:.2f}M parameters, "
        f"on {device}{chosen}{ranks}"
    )
