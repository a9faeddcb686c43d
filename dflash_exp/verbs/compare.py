"""The verb compare."""

import argparse
import sys
from pathlib import Path

from dflash_exp.launch.children import DONE, FAILED
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb

OWN_PLACE = ""
"""--wandb without a value: where the runs are."""


def compare(arguments: list[str]) -> int:
    """Hold the arms of a sweep against one another, from files alone or from W&B alone."""
    given = parsed(_parser(), arguments, "see dflash-exp compare --help")
    place = None if given.wandb in (None, OWN_PLACE) else _place(given.wandb)
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
    return DONE if given.wandb is None else published(out, place)


def _place(value: str) -> tuple[str, str]:
    """Entity and project; raises ConfigError."""
    entity, _, project = value.partition("/")
    if not entity or not project or "/" in project:
        raise ConfigError(f"--wandb takes ENTITY/PROJECT or nothing, got {value}; nothing: where the runs are")
    return entity, project


def published(out: Path, place: tuple[str, str] | None) -> int:
    """Make a report of the page that is there, or say in a line why there is none."""
    from dflash_exp.telemetry.wandb_account import WandbTrouble
    from dflash_exp.telemetry.wandb_report import publish

    try:
        print(f"report: {publish(out, place)}")
    except WandbTrouble as error:
        said = f"no W&B report was made: {error} (the page is whole; report_spec.json beside it is what was to be made)"
        print(f"dflash-exp: {said}", file=sys.stderr)
        return FAILED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp compare", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "dirs",
        metavar="DIR",
        nargs="+",
        help="a sweep; or several, or runs, that are compared together; or wandb:ENTITY/PROJECT/GROUP, without files",
    )
    parser.add_argument("--baseline", metavar="ARM", help="another arm to hold all against: interleave=shuffle")
    parser.add_argument("--metric", metavar="NAME", help="another metric to judge by: tau_pooled")
    parser.add_argument("--out", metavar="FOLDER", help="where to write (DIR/compare); an old one is never overwritten")
    parser.add_argument(
        "--wandb",
        metavar="ENTITY/PROJECT",
        nargs="?",
        const=OWN_PLACE,
        help="make a W&B Report of it, too (nothing: in the project that the runs name)",
    )
    return parser


VERB = Verb(
    "compare",
    "DIR...",
    "head-to-head report of a sweep: verdict, tables, figures, one page, from files or from W&B alone",
    ("dflash-exp compare runs/interleaving", "dflash-exp compare runs/jitter --metric tau_pooled --out tau"),
    compare,
    _parser,
)
