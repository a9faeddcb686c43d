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
    options = EvaluateOptions(**{name: value for name, value in vars(given).items() if name != "path"})
    path = _path(given.path, options.server)
    run_config = None if path is None else path / "config.yaml"
    config = load(run_config) if run_config is not None and run_config.is_file() else None
    if options.server is not None:
        from dflash_exp.server_scoring import evaluate_server

        return evaluate_server(path, config, options)
    from dflash_exp.scoring import evaluate as decode_for_real

    assert path is not None, "without a server there is one"
    return decode_for_real(path, config, options)


def _path(given: str | None, server: str | None) -> Path | None:
    """The run's or the drafter's directory; None where a server alone was named."""
    if given is None and server is not None:
        return None
    if given is None or not Path(given).is_dir():
        got = "none" if given is None else given
        raise ConfigError(f"PATH must be a run's directory or a drafter's, got {got}; `ls runs` shows the runs here")
    return Path(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp evaluate", add_help=False, allow_abbrev=False)
    parser.add_argument("path", metavar="PATH", nargs="?", help="a run's directory, or a drafter's, ours or published")
    parser.add_argument("--target", metavar="PATH", help="another target than the run's; a drafter alone needs it")
    parser.add_argument(
        "--prompts", metavar="FILE", help="JSONL: prompts, messages, rows of GSM8K, HumanEval, MT-Bench"
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens a prompt is continued by")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: greedy")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts, at most")
    parser.add_argument("--checkpoint", metavar="NAME", help="another checkpoint than the latest")
    parser.add_argument("--server", metavar="URL", help="vLLM or SGLang where it is served; PATH may be left out")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the server's key")
    return parser


VERB = Verb(
    "evaluate",
    "PATH",
    "decode for real, plain and speculative, and compare every token",
    ("dflash-exp evaluate runs/NAME", "dflash-exp evaluate drafter --target DIR --prompts gsm8k.jsonl --limit 64"),
    evaluate,
    _parser,
)
