"""The verb compare."""

import argparse
from pathlib import Path

from dflash_exp.launch.children import DONE
from dflash_exp.suggest import parsed
from dflash_exp.verbs.verb import Verb


def compare(arguments: list[str]) -> int:
    """Hold the arms of a sweep against one another, from files alone."""
    given = parsed(_parser(), arguments, "see dflash-exp compare --help")
    from dflash_exp import comparison

    options = comparison.Options(given.metric, given.baseline, None if given.out is None else Path(given.out))
    report, out = comparison.compare(given.dirs, options)
    if report.look != "final":
        print(f"{report.look}:")
    for line in report.cautions:
        print(f"! {line}")
    for lead, sentence in report.sentences:
        print(f"{lead}: {sentence}")
    print(f"page: {out / comparison.PAGE}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp compare", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "dirs",
        metavar="DIR",
        nargs="+",
        help="a sweep; or several, or runs, or wandb:ENTITY/PROJECT/GROUP, compared together",
    )
    parser.add_argument("--baseline", metavar="ARM", help="another arm to hold all against: interleave=shuffle")
    parser.add_argument("--metric", metavar="NAME", help="another metric to judge by: tau_pooled")
    parser.add_argument("--out", metavar="FOLDER", help="where to write (DIR/compare); an old one is never overwritten")
    return parser


VERB = Verb(
    "compare",
    "DIR...",
    "head-to-head report of a sweep: verdict, tables, figures, one page, from files alone",
    ("dflash-exp compare runs/interleaving", "dflash-exp compare runs/jitter --metric tau_pooled --out tau"),
    compare,
    _parser,
)
