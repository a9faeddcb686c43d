"""The verbs of the console script `dflash-exp`.

In: the command line. Out: an exit code: 0 done, 1 the run failed, 2 the user's input is wrong (one line on stderr),
75 stopped on request and resumable. Whatever is heavy (Hydra .3 s, torch seconds) is imported by the verb that needs
it, so that `--help` and a mistyped verb answer at once.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.options import group_options
from dflash_exp.suggest import ConfigError, did_you_mean, parsed

if TYPE_CHECKING:
    from dflash_exp.compose import Job

DONE, FAILED, WRONG_INPUT, STOPPED = 0, 1, 2, 75


@dataclass(frozen=True)
class Verb:
    """One verb: what its help says, and what it does."""

    takes: str
    does: str
    examples: tuple[str, str]
    run: Callable[[list[str]], int]


def main(arguments: list[str] | None = None) -> int:
    """Run a verb with its arguments (None: the process's own) and return the exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        if name in ("-h", "--help"):
            print(_help())
            return DONE
        if name == "--version":
            print(_version())
            return DONE
        if name in ("-sc", "--shell-completion"):
            return _completed(rest)
        verb = _verb(name)
        if "-h" in rest or "--help" in rest:
            print(_verb_help(name, verb))
            return DONE
        return verb.run(rest)
    except ConfigError as error:
        return _refused(error)
    except KeyboardInterrupt:
        print("dflash-exp: interrupted; what the run had written stays in its directory", file=sys.stderr)
        return FAILED


def train(arguments: list[str]) -> int:
    """Train what the overrides say."""
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    from dflash_exp.experiment import run

    return _in_turn(jobs, lambda job: run(job.config, job.overrides))


def plan(arguments: list[str]) -> int:
    """Show an epoch before anybody pays for it."""
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    if not jobs[0].in_sweep:
        return _show_plan(jobs[0])
    jobs = _in_a_new_folder(jobs)
    code = _in_turn(jobs, _show_plan)
    _print_side_by_side(jobs)
    return code


def evaluate(arguments: list[str]) -> int:
    """Decode for real, plain and speculative."""
    from dflash_exp.config import EvaluateOptions
    from dflash_exp.door import load

    given = parsed(_evaluate_parser(), arguments, "see dflash-exp evaluate --help")
    options = EvaluateOptions(
        given.target, given.prompts, given.max_new_tokens, given.temperature, given.limit, given.checkpoint
    )
    from dflash_exp.scoring import evaluate as decode_for_real

    path = Path(given.path)
    if not path.is_dir():
        raise ConfigError(f"PATH must be a run's directory or a drafter's, got {path}; `ls runs` shows the runs here")
    run_config = path / "config.yaml"
    return decode_for_real(path, load(run_config) if run_config.is_file() else None, options)


def bench(arguments: list[str]) -> int:
    """Measure the product's own speed."""
    given = parsed(_bench_parser(), arguments, "see dflash-exp bench --help")
    for name, value in {"--rounds": given.rounds, "--items": given.items}.items():
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}; leave it out for the usual number")
    from dflash_exp.bench import show_line

    return show_line(given.rounds, given.items, given.json)


VERBS = {
    "train": Verb(
        "OVERRIDES",
        "train; with no overrides the embedded experiment, ending in decoded τ",
        ("dflash-exp train", "dflash-exp train -m interleave=shuffle,stride_jitter seed=0,1,2"),
        train,
    ),
    "plan": Verb(
        "OVERRIDES",
        "show an epoch before anybody pays for it: table, plan.json, plan.png, order.npy",
        ("dflash-exp plan interleave=shuffle", "dflash-exp plan -m 'interleave=glob(*)' plan.counts=[2120,8009,19581]"),
        plan,
    ),
    "evaluate": Verb(
        "PATH",
        "decode for real, plain and speculative, and compare every token",
        ("dflash-exp evaluate runs/NAME", "dflash-exp evaluate runs/NAME --limit 8 --temperature 0.7"),
        evaluate,
    ),
    "bench": Verb(
        "line",
        "the product's own speed: medians of interleaved rounds",
        ("dflash-exp bench line", "dflash-exp bench line --rounds 1 --json"),
        bench,
    ),
}


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp evaluate", add_help=False, allow_abbrev=False)
    parser.add_argument("path", metavar="PATH", help="a run's directory")
    parser.add_argument("--target", metavar="PATH", help="another target than the run's")
    parser.add_argument("--prompts", metavar="FILE", help="other prompts than the run's held-out ones")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens a prompt is continued by")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: greedy")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts, at most")
    parser.add_argument("--checkpoint", metavar="NAME", help="another checkpoint than the latest")
    return parser


def _bench_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp bench", add_help=False, allow_abbrev=False)
    parser.add_argument("what", choices=["line"], help="the overlapped line over simulated stages")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians are over these (3)")
    parser.add_argument("--items", type=int, default=2000, metavar="N", help="batches that go through the line (2000)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _show_plan(job: "Job") -> int:
    from dflash_exp.planning import show_plan

    run = job.config.plan.loss_from
    if run is None:
        return show_plan(job.config)
    from dflash_exp.sequence_losses import losses_for

    return show_plan(job.config, losses_for(job.config, Path(run)))


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
    from rich.console import Console

    from dflash_exp.summary import print_plans

    shared = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    names = [" ".join(typed for typed in job.overrides if typed not in shared) for job in jobs]
    made = [(name, Path(job.config.plan.out) / "plan.json") for name, job in zip(names, jobs, strict=True)]
    print_plans(Console(), [(name, json.loads(path.read_text("utf-8"))) for name, path in made if path.is_file()])


def _in_turn(jobs: "list[Job]", run: "Callable[[Job], int]") -> int:
    """Run the jobs one after the other: a failed one does not lose the rest, a stop on request stops them all."""
    if len(jobs) == 1:
        return run(jobs[0])
    codes: list[int] = []
    for number, job in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}] {' '.join(job.overrides)}", file=sys.stderr)
        codes.append(_outcome(job, run))
        if codes[-1] == STOPPED:
            break
    return next((code for code in (STOPPED, FAILED, WRONG_INPUT) if code in codes), DONE)


def _outcome(job: "Job", run: "Callable[[Job], int]") -> int:
    try:
        return run(job)
    except ConfigError as error:
        return _refused(error)
    except Exception:  # the run's edge: the sweep goes on, its exit code tells
        traceback.print_exc()
        return FAILED


def _refused(error: ConfigError) -> int:
    print(f"dflash-exp: {error}", file=sys.stderr)
    return WRONG_INPUT


def _verb(name: str) -> Verb:
    if name in VERBS:
        return VERBS[name]
    mend = did_you_mean(name, VERBS) or f"; the verbs are {', '.join(VERBS)}"
    if "=" in name:
        mend = f"; overrides follow a verb: dflash-exp train {name}"
    raise ConfigError(f"there is no verb `{name}`{mend}")


def _completed(arguments: list[str]) -> int:
    """Answer the shell: a verb where one is due, else what Hydra completes once the verb is taken off the line."""
    line = os.environ.get("COMP_LINE", "")
    script, _, behind = line.partition(" ")
    _verb_typed, space, behind = behind.partition(" ")
    if line and not space:
        print(" ".join(VERBS))
        return DONE
    if line:
        os.environ["COMP_LINE"] = f"{script} {behind}"
        os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    from dflash_exp.compose import compose_jobs

    compose_jobs(["-sc", *arguments])
    return DONE


def _version() -> str:
    from importlib.metadata import version

    return version("dflash-exp")


def _help() -> str:
    verbs = [f"  {name + ' ' + verb.takes:<18}{verb.does}" for name, verb in VERBS.items()]
    return HELP.format(verbs="\n".join(verbs))


HELP = """\
usage: dflash-exp VERB ...

How batches reach a DFlash drafter, as a controlled experiment.

{verbs}

`dflash-exp VERB --help` shows what a verb takes; eval "$(dflash-exp -sc install=bash)" completes it.
exit codes: 0 done, 1 failed, 2 wrong input, 75 stopped on request and resumable"""


def _verb_help(name: str, verb: Verb) -> str:
    parsers = {"evaluate": _evaluate_parser, "bench": _bench_parser}
    if name in parsers:
        details = parsers[name]().format_help().partition("\n\n")[2].rstrip()
    else:
        groups = [f"  {group:<12}{', '.join(options)}" for group, options in group_options().items()]
        details = OVERRIDES_HELP.format(groups="\n".join(groups))
    first, second = verb.examples
    return VERB_HELP.format(name=name, takes=verb.takes, does=verb.does, first=first, second=second, details=details)


VERB_HELP = """\
usage: dflash-exp {name} {takes}

{name}: {does}.

examples:
  {first}
  {second}

{details}"""

OVERRIDES_HELP = """\
overrides are GROUP=OPTION or KEY=VALUE (interleave.jitter_strides=0.5); the groups:
{groups}

flags:
  -m                 a run for every combination of comma-separated values
  --cfg job          print the composed configuration, which lists every key, and do nothing
  --config-dir DIR   look for options in a folder of yours, too"""


if __name__ == "__main__":
    sys.exit(main())
