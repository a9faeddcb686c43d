"""The verb evaluate."""

import argparse
from pathlib import Path

from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb


def evaluate(arguments: list[str]) -> int:
    """Decode for real, plain and speculative."""
    from dflash_exp.config import EvaluateOptions
    from dflash_exp.door import load

    given = parsed(_parser(), arguments, "see dflash-exp evaluate --help")
    options = EvaluateOptions(
        given.target, given.prompts, given.max_new_tokens, given.temperature, given.limit, given.checkpoint
    )
    from dflash_exp.scoring import evaluate as decode_for_real

    path = Path(given.path)
    if not path.is_dir():
        raise ConfigError(f"PATH must be a run's directory or a drafter's, got {path}; `ls runs` shows the runs here")
    run_config = path / "config.yaml"
    return decode_for_real(path, load(run_config) if run_config.is_file() else None, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp evaluate", add_help=False, allow_abbrev=False)
    parser.add_argument("path", metavar="PATH", help="a run's directory, or a drafter's, ours or published")
    parser.add_argument("--target", metavar="PATH", help="another target than the run's; a drafter alone needs it")
    parser.add_argument(
        "--prompts", metavar="FILE", help="JSONL: prompts, messages, rows of GSM8K, HumanEval, MT-Bench"
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens a prompt is continued by")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: greedy")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts, at most")
    parser.add_argument("--checkpoint", metavar="NAME", help="another checkpoint than the latest")
    return parser


VERB = Verb(
    "evaluate",
    "PATH",
    "decode for real, plain and speculative, and compare every token",
    ("dflash-exp evaluate runs/NAME", "dflash-exp evaluate drafter --target DIR --prompts gsm8k.jsonl --limit 64"),
    evaluate,
    _parser,
)
