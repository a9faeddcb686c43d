"""The verb logs."""

import argparse
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dflash_exp.launch.children import DONE
from dflash_exp.run_state import at_work
from dflash_exp.submitted import is_submitted
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb

PAUSE_S = 0.5


def logs(arguments: list[str]) -> int:
    """Print what a run's ranks have written."""
    given = parsed(_parser(), arguments, "see dflash-exp logs --help")
    run_dir = Path(given.run)
    if not (run_dir / "config.yaml").is_file() and not is_submitted(run_dir):
        raise ConfigError(f"RUN must be a run's directory, got {run_dir}; `dflash-exp status` shows the runs here")
    if given.rank is not None and given.rank < 0:
        raise ConfigError(f"--rank must be >= 0, got {given.rank}; leave it out for all")
    files = _files(run_dir, given.rank)
    if not files:
        print(f"dflash-exp: {_where_to_look(run_dir, given.rank)}", file=sys.stderr)
    elif given.follow:
        with suppress(KeyboardInterrupt):
            follow(files, lambda: at_work(run_dir), lambda: time.sleep(PAUSE_S))
    else:
        follow(files, lambda: False, lambda: None)
    return DONE


def follow(files: list[Path], runs: Callable[[], bool], pause: Callable[[], None]) -> None:
    """Print the files, several each under its name, and what is added to them while the run is at work."""
    read, named = dict.fromkeys(files, 0), None
    while True:
        goes_on = runs()
        for path in files:
            with path.open("rb") as file:
                file.seek(read[path])
                new = file.read()
            if new and len(files) > 1 and named != path:
                print(f"==> {path} <==")
                named = path
            read[path] += len(new)
            print(new.decode("utf-8", errors="replace"), end="", flush=True)
        if not goes_on:
            return
        pause()


def _files(run_dir: Path, rank: int | None) -> list[Path]:
    """By number: rank-2.log before rank-10.log."""
    patterns = ["*.log", "*.out"] if rank is None else [f"rank-{rank}.log", f"slurm-*-{rank}.out"]
    found = [path for pattern in patterns for path in (run_dir / "logs").glob(pattern)]
    return sorted(
        found, key=lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", path.name)]
    )


def _where_to_look(run_dir: Path, rank: int | None) -> str:
    others = sorted(path.name for path in (run_dir / "logs").glob("*") if path.is_file())
    beside = f", and {', '.join(others)} in {run_dir / 'logs'}" if others else ""
    whose = "the run" if rank is None else f"rank {rank}"
    return (
        f"{whose} has no log: the first rank speaks where it was started; what it did is in "
        f"{run_dir / 'metrics.jsonl'}, how it ended in {run_dir / 'result.json'}{beside}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp logs", add_help=False, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument("--rank", type=int, metavar="N", help="of this rank alone")
    parser.add_argument("--follow", action="store_true", help="go on printing while the run is at work")
    return parser


VERB = Verb(
    "logs",
    "RUN",
    "print what a run's ranks have written to logs/",
    ("dflash-exp logs runs/NAME", "dflash-exp logs runs/NAME --rank 1 --follow"),
    logs,
    _parser,
)
