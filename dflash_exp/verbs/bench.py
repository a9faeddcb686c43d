"""The verb bench."""

import argparse
from pathlib import Path

from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb

OF_ONE = {"items": "line", "large": "plan", "figure": "step"}
"""Options that only one of the benches takes."""
ITEMS = 2000


def bench(arguments: list[str]) -> int:
    """Measure the product's own speed."""
    given = parsed(_parser(), arguments, "see dflash-exp bench --help")
    for name, value in {"--rounds": given.rounds, "--items": given.items}.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}; leave it out for the usual number")
    for name, what in OF_ONE.items():
        if vars(given)[name] and given.what != what:
            raise ConfigError(f"--{name} must go with bench {what}, got it with bench {given.what}; leave it out")
    return {"line": _line, "plan": _plan, "step": _step}[given.what](given)


def _line(given: argparse.Namespace) -> int:
    from dflash_exp.bench.line import show_line

    return show_line(given.rounds, given.items or ITEMS, given.json)


def _plan(given: argparse.Namespace) -> int:
    from dflash_exp.compose import compose, compose_jobs

    jobs = sorted(compose_jobs(["-m", "interleave=glob(*)"]), key=lambda job: job.index)
    strategies = [job.config.interleave for job in jobs]
    embedded = compose(["batches.pool=256"])
    from dflash_exp.bench.plan import Sizes, show_plan_figures

    return show_plan_figures(strategies, embedded, given.rounds, given.large, given.json, Sizes())


def _step(given: argparse.Namespace) -> int:
    figure = given.figure
    if figure is not None and (figure.suffix != ".png" or not figure.parent.is_dir()):
        raise ConfigError(f"--figure must be a .png file in a folder that is there, got {figure}")
    from dflash_exp.bench.step import Axes, show_step

    return show_step(given.rounds, given.json, figure, Axes())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp bench", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "what",
        choices=["line", "plan", "step"],
        help="line: the overlapped line over simulated stages; plan: orders, epochs, padding and waiting; step: where "
        "the drafter's time goes, and how it grows",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians are over these (3)")
    parser.add_argument("--items", type=int, metavar="N", help=f"line: batches that go through it ({ITEMS})")
    parser.add_argument("--large", action="store_true", help="plan: 10M batches and 100M lengths, too (2 GB, minutes)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="step: a PNG of how its time grows")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


VERB = Verb(
    "bench",
    "line|plan|step",
    "the product's own speed: medians of interleaved rounds",
    ("dflash-exp bench line", "dflash-exp bench step --rounds 15 --figure growth.png"),
    bench,
    _parser,
)
