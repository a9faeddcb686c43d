"""The verb export."""

import argparse
from pathlib import Path

from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb


def export(arguments: list[str]) -> int:
    """Write a run's drafter where engines find it."""
    from dflash_exp.door import load

    given = parsed(_parser(), arguments, "see dflash-exp export --help")
    run_dir = Path(given.run)
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError(f"RUN must be a run's directory, got {run_dir}; `dflash-exp status` shows the runs here")
    from dflash_exp.exporting import export as export_run

    return export_run(run_dir, load(run_dir / "config.yaml"), Path(given.out), given.checkpoint)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp export", add_help=False, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument("out", metavar="OUT", help="the folder to be made")
    parser.add_argument("--checkpoint", metavar="NAME", help="another checkpoint than the latest")
    return parser


VERB = Verb(
    "export",
    "RUN OUT",
    "a run's drafter in the layout that z-lab's class, vLLM and SGLang load, with a model card",
    ("dflash-exp export runs/NAME drafter", "dflash-exp export runs/NAME drafter --checkpoint step-00000400"),
    export,
    _parser,
)
