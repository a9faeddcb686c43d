"""What a verb is: what its help says, and what it does.

A verb's file imports what is heavy (Hydra .3 s, torch seconds) inside the function that needs it: the console script
imports all of them for every command, `--help` too.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_exp.launch.children import DONE, WRONG_INPUT
from dflash_exp.options import group_options
from dflash_exp.suggest import ConfigError, one_line

if TYPE_CHECKING:
    from dflash_exp.compose import Job
    from dflash_exp.run_state import Found


@dataclass(frozen=True)
class Verb:
    """One verb; a new one is a file with its `VERB`, and an entry in the table of `cli.py`."""

    name: str
    takes: str
    """In one word, for the usage line."""
    does: str
    examples: tuple[str, str]
    run: Callable[[list[str]], int]
    """What stands behind the verb -> an exit code; raises ConfigError for what the user got wrong."""
    parser: Callable[[], argparse.ArgumentParser] | None = None
    """Ordinary options; None: the verb takes overrides of the configuration."""

    def help(self) -> str:
        """What `dflash-exp VERB --help` prints."""
        details = OVERRIDES.format(groups=_groups()) if self.parser is None else _options(self.parser())
        first, second = self.examples
        return HELP.format(
            name=self.name, takes=self.takes, does=self.does, first=first, second=second, details=details
        )


HELP = """\
usage: dflash-exp {name} {takes}

{name}: {does}.

examples:
  {first}
  {second}

{details}"""

OVERRIDES = """\
overrides are GROUP=OPTION or KEY=VALUE (interleave.jitter_strides=0.5); the groups:
{groups}

flags:
  -m                 a run for every combination of comma-separated values
  --cfg job          print the composed configuration, which lists every key, and do nothing
  --config-dir DIR   look for options in a folder of yours, too"""


def _groups() -> str:
    return "\n".join(f"  {group:<12}{', '.join(options)}" for group, options in group_options().items())


def _options(parser: argparse.ArgumentParser) -> str:
    """What argparse says below its own usage line."""
    return parser.format_help().partition("\n\n")[2].rstrip()


def refused(error: ConfigError) -> int:
    """Say in one line on stderr what the user got wrong; the exit code for it."""
    print(f"dflash-exp: {error}", file=sys.stderr)
    return WRONG_INPUT


def from_one_job(arguments: list[str], makes: str, make: "Callable[[Job], int]") -> int:
    """Of a verb whose overrides mean one thing: what `make` answers, whose ValueError is the user's mistake.

    Raises ConfigError; `makes` says what there is one of.
    """
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    if jobs[0].in_sweep:
        raise ConfigError(f"{makes}, got a sweep; leave out -m and sweeps=")
    try:
        return make(jobs[0])
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from error


def say_damaged(runs: "Sequence[Found]") -> None:
    """A line for each that is left as it is because it cannot be read."""
    for run in runs:
        if run.damage is not None:
            print(f"dflash-exp: {run.damage} ({run.run_dir} is left as it is)", file=sys.stderr)
