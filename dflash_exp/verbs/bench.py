"""The verb bench."""

import argparse

from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb


def bench(arguments: list[str]) -> int:
    """Measure the product's own speed."""
    given = parsed(_parser(), arguments, "see dflash-exp bench --help")
    for name, value in {"--rounds": given.rounds, "--items": given.items}.items():
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}; leave it out for the usual number")
    from dflash_exp.bench.line import show_line

    return show_line(given.rounds, given.items, given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp bench", add_help=False, allow_abbrev=False)
    parser.add_argument("what", choices=["line"], help="the overlapped line over simulated stages")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians are over these (3)")
    parser.add_argument("--items", type=int, default=2000, metavar="N", help="batches that go through the line (2000)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


VERB = Verb(
    "bench",
    "line",
    "the product's own speed: medians of interleaved rounds",
    ("dflash-exp bench line", "dflash-exp bench line --rounds 1 --json"),
    bench,
    _parser,
)
