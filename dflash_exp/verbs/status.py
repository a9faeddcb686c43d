"""The verb status."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dflash_exp.launch.children import DONE
from dflash_exp.launch.queue import InQueue
from dflash_exp.queued import held_jobs
from dflash_exp.run_state import Found, RunState, find_runs, run_state
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.telemetry.duration import duration
from dflash_exp.verbs.verb import Verb

PAUSE_S = 2.0


def status(arguments: list[str]) -> int:
    """Say what state runs are in."""
    given = parsed(_parser(), arguments, "see dflash-exp status --help")
    folder = Path(given.dir)
    if given.watch:
        with suppress(KeyboardInterrupt):
            watch(folder, lambda: time.sleep(PAUSE_S))
    else:
        print(shown(folder)[0])
    return DONE


def all_finished(counts: "Counter[str]") -> bool:
    """Whether there is nothing left to wait for, or to mend."""
    return set(counts) == {"finished"}


def none_at_work(counts: "Counter[str]") -> bool:
    """Whether nothing will change by itself."""
    return not counts["queued"] and not counts["running"]


def watch(
    folder: Path, pause: Callable[[], None], ends: "Callable[[Counter[str]], bool]" = all_finished
) -> "Counter[str]":
    """Show it again and again, until the counts of states say that it ends: in place on a terminal, elsewhere (a log)
    whenever they have changed."""
    last: Counter[str] | None = None
    while True:
        text, counts = shown(folder)
        if sys.stdout.isatty() or counts != last:
            print(f"\033[H\033[2J{text}" if sys.stdout.isatty() else f"{text}\n", flush=True)
        last = counts
        if ends(counts):
            return counts
        pause()


def shown(folder: Path) -> "tuple[str, Counter[str]]":
    """A line for each run and one that counts them; the counts. Raises ConfigError for no runs."""
    runs = find_runs(folder)
    held, remark = _held([run.run_dir for run in runs if run.damage is None])
    rows = [(_name(run, folder), *_state(run, held)) for run in runs]
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{word:<11}{name:<{width}}  {detail}".rstrip() for name, word, detail in rows]
    counts = Counter(word for _, word, _ in rows)
    runs_in_all = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    lines.append(f"{runs_in_all}: " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))
    return "\n".join([*lines, *remark]), counts


def _name(run: Found, folder: Path) -> str:
    return str(folder) if run.run_dir == folder else run.run_dir.relative_to(folder).as_posix()


def _held(run_dirs: list[Path]) -> tuple[Mapping[str, InQueue], list[str]]:
    """What the queue says, or that it says nothing."""
    try:
        return held_jobs(run_dirs), []
    except ConfigError as error:
        return {}, [str(error)]


def _state(run: Found, held: Mapping[str, InQueue]) -> tuple[str, str]:
    if run.damage is not None:
        return "unreadable", run.damage
    try:
        state = run_state(run.run_dir, held)
    except ConfigError as error:
        return "unreadable", str(error)
    return state.word, _detail(state)


def _detail(state: RunState) -> str:
    of_all = f"step {state.step}" + ("" if state.n_steps is None else f" of {state.n_steps}")
    if state.word == "finished":
        figures = {"probe loss": state.probe_loss, "τ": state.tau}
        said = [f"{name} {figure:.3f}" for name, figure in figures.items() if figure is not None]
        return ", ".join([f"{state.n_steps} steps", *said])
    if state.word == "queued":
        begun = [f"at {of_all}"] if state.step else []
        return ", ".join([*begun, *([] if state.job is None else [state.job])])
    if state.word == "running":
        left = [] if state.eta_s is None else [f"{duration(state.eta_s)} left"]
        speed = [] if state.tokens_per_s is None else [f"{state.tokens_per_s:,.0f} tokens/s"]
        return ", ".join([of_all, *left, *speed, *([] if state.job is None else [state.job])])
    if state.word == "failed":
        return f"after {of_all}: {state.error}"
    return f"at {of_all}" if state.word == "stopped" else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp status", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "dir", metavar="DIR", nargs="?", default="runs", help="a run, a sweep or a folder of them (runs)"
    )
    parser.add_argument("--watch", action="store_true", help="again every 2 s, until all are finished or Ctrl-C")
    return parser


VERB = Verb(
    "status",
    "[DIR]",
    "what runs, what is missing, what failed and why, from files alone",
    ("dflash-exp status", "dflash-exp status runs/interleaving --watch"),
    status,
    _parser,
)
